"""Whether web lives and whether it can work; open to everybody, so without any data."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from console.database_gate import ask_database, gate


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers. Says nothing of what it depends on."""
    return JsonResponse({"alive": True})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """503 while the database does not answer."""
    is_ready = gate.is_open() and ask_database()
    if not is_ready:
        gate.note_failure()
    return JsonResponse({"ready": is_ready}, status=200 if is_ready else 503)
