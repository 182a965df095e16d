"""Routes: wiring only."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from console import health, internal, metrics

handler400 = "console.error_answers.bad_request"
handler403 = "console.error_answers.permission_denied"
handler404 = "console.error_answers.page_not_found"
handler500 = "console.error_answers.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("internal/routing-table", internal.routing_table),
    path("internal/gateway-state", internal.gateway_state),
    path("internal/tokenizer/<str:digest>", internal.tokenizer_file),
    path("api/", include("console.api.urls")),
    path("", include("console.pages.urls")),
]
