"""Whether web lives and whether it can work; open to everybody, so without any data."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers. Says nothing of what it depends on."""
    return JsonResponse({"alive": True})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """503 while the database does not answer."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError):
        return JsonResponse({"ready": False}, status=503)
    return JsonResponse({"ready": True})
