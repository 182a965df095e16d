"""The OpenAPI file and the page that shows it."""

from __future__ import annotations

from django.contrib.auth.views import redirect_to_login
from django.http.response import HttpResponseBase
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView
from rest_framework.exceptions import NotAuthenticated

from console.access import Right


class Schema(SpectacularJSONAPIView):
    rights = {"GET": Right.VIEW}


class Docs(SpectacularSwaggerSplitView):
    """Without inline script or style, as the content security policy asks."""

    rights = {"GET": Right.VIEW}
    template_name = "api/docs.html"

    def handle_exception(self, exc: Exception) -> HttpResponseBase:  # type: ignore[override]  # a redirect too
        if isinstance(exc, NotAuthenticated):
            return redirect_to_login(self.request.get_full_path())
        return super().handle_exception(exc)
