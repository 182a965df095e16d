"""Failures as answers: JSON below /api/, a page elsewhere. `console.errors` says what is shown."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.html import escape
from rest_framework.response import Response
from rest_framework.views import set_rollback

from console.database_gate import gate
from console.errors import Failure, find_failure, make_failure, unexpected_failure

logger = logging.getLogger(__name__)

MACHINE_PREFIXES = ("/api/", "/internal/", "/metrics")
TEMPLATE = "errors/error.html"


def answer_failure(request: HttpRequest, failure: Failure) -> HttpResponse:
    if request.path.startswith(MACHINE_PREFIXES):
        return JsonResponse(failure.body(), status=failure.status, headers=failure.headers())
    return HttpResponse(_page(request, failure), status=failure.status, headers=failure.headers())


def answer_exception(request: HttpRequest, error: BaseException) -> HttpResponse:
    """Logs what nobody expected, once, and answers with a request id to find it by."""
    failure = find_failure(error)
    _watch_database(failure)
    if failure is None:
        request_id = request_id_of(request)
        logger.error(
            "unexpected failure", exc_info=error, extra={"request_id": request_id, "path": request.path}
        )
        failure = unexpected_failure(request_id)
    return answer_failure(request, failure)


def request_id_of(request: HttpRequest) -> str:
    return getattr(request, "request_id", "")


def api_exception_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """For REST_FRAMEWORK: every failure of a view in the contract's shape; None lets the unexpected fly."""
    failure = find_failure(exc)
    _watch_database(failure)
    if failure is None:
        return None
    set_rollback()
    return Response(failure.body(), status=failure.status, headers=failure.headers())


def _watch_database(failure: Failure | None) -> None:
    if failure is not None and failure.code == "database_unavailable":
        gate.note_failure()


def _page(request: HttpRequest, failure: Failure) -> str:
    # Without the database the layout cannot ask who is signed in: those pages are rendered bare.
    bare = failure.status >= 500
    context = {
        "status": failure.status,
        "code": failure.code,
        "message": failure.message,
        "next_action": failure.shown.next_action,
        "details": failure.details,
        "request_id": request_id_of(request),
        "bare": bare,
        "partial": bool(getattr(request, "htmx", False)),
    }
    try:
        return loader.get_template(TEMPLATE).render(context, None if bare else request)
    except TemplateDoesNotExist:
        lines = (failure.message, failure.shown.next_action, failure.code)
        body = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return f"<!doctype html><meta charset=utf-8><title>{failure.status}</title>{body}"


# Django's last resorts, named in `console.urls` and in the settings.


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return answer_exception(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return answer_exception(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return answer_exception(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    error = sys.exc_info()[1]
    if error is None:
        return answer_failure(request, unexpected_failure(request_id_of(request)))
    return answer_exception(request, error)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    return answer_failure(
        request, make_failure("csrf_failed", f"The request carries no valid CSRF token. {reason}")
    )
