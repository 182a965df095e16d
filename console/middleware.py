"""A request id on every answer, security headers, and failures shown as pages or JSON."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from console.database_gate import gate
from console.error_answers import answer_exception, answer_failure
from console.errors import Failure, database_down, make_failure

GetResponse = Callable[[HttpRequest], HttpResponseBase]

NO_FORMS = ("/api/", "/internal/")
"""What is posted there is read by a schema."""
WITHOUT_DATABASE = ("/static/", "/healthz", "/readyz", "/metrics")

SECURITY_HEADERS: Final = {
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestIdentity:
    """First of all: each request gets an id, and what no view should see is refused here."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        request.request_id = secrets.token_hex(8)  # type: ignore[attr-defined]
        refusal = _refusal(request)
        response = answer_failure(request, refusal) if refusal else self.get_response(request)
        response["X-Request-Id"] = request.request_id  # type: ignore[attr-defined]
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        if not request.path.startswith("/static/"):
            response.headers.setdefault("Cache-Control", "private, no-store")
        return response


def _refusal(request: HttpRequest) -> Failure | None:
    if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        return make_failure("malformed_request", "NUL characters are not accepted.")
    if request.method == "POST" and not request.path.startswith(NO_FORMS) and _holds_nul(request.body):
        return make_failure("malformed_request", "NUL characters are not accepted.")
    # WSGI reads as much as Content-Length says: a chunked body would be taken for an empty one.
    if "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "") and not request.META.get("CONTENT_LENGTH"):
        return make_failure("length_required", "Bodies need a Content-Length here.")
    if not request.path.startswith(WITHOUT_DATABASE) and not gate.is_open():
        return database_down()
    return None


def _holds_nul(form: bytes) -> bool:
    """PostgreSQL stores none, and not every field of a page is a form's that would say so."""
    return b"\0" in form or b"%00" in form


class ErrorPages:
    """Turns what a view raises into the answer that `console.errors` states."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse:
        return answer_exception(request, exception)
