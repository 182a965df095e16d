"""`/metrics` of web, for Prometheus: from this host, or with an API token whose user may view."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from console.access import Right, rights_of
from console.error_answers import answer_failure
from console.errors import make_failure
from console.loop_lag import LAG
from pool.domain.prometheus import CONTENT_TYPE, Page
from pool.metrics_listener import may_read
from pool.process_figures import add_own_process
from pool.services.keys import find_token_user

LONGEST_TOKEN = 256


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Needs no database when this host asks."""
    peer = str(request.META.get("REMOTE_ADDR", ""))
    if not may_read(peer, request.headers, token=None) and not _shows_token(request):
        return answer_failure(
            request,
            make_failure("not_authenticated", "Metrics are for this host, or for who shows an API token."),
        )
    page = Page()
    add_own_process(page)
    page.set("sluice_loop_lag_seconds", LAG.longest_s)
    return HttpResponse(page.render(), content_type=CONTENT_TYPE)


def _shows_token(request: HttpRequest) -> bool:
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(value) <= LONGEST_TOKEN:
        return False
    user = find_token_user(value.strip())
    return user is not None and Right.VIEW in rights_of(user)
