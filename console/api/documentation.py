"""What the OpenAPI schema says beyond the code: answers, and the codes that each status may carry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

from console.errors import TABLE

View = TypeVar("View", bound=Callable[..., Any])

ALWAYS = (
    "not_authenticated",
    "invalid_token",
    "forbidden",
    "internal_error",
    "database_unavailable",
    "database_busy",
)
ON_READ = ("not_found", "malformed_request", "invalid", "not_acceptable")
ON_WRITE = (
    *ON_READ,
    "csrf_failed",
    "conflict",
    "length_required",
    "request_too_large",
    "unsupported_media_type",
)
ON_POST = (*ON_WRITE, "idempotency_conflict", "request_in_progress")

LIMIT = OpenApiParameter("limit", int, description="At most this many, 1 to 500.", default=100)
OFFSET = OpenApiParameter("offset", int, description="Skip this many; `next` sets it.", default=0)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="1 to 255 printable ASCII characters. A repeated request with the same key and body is "
    "done once and answered as the first was; a secret is in the first answer only.",
)


class ErrorBody(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable; see the answer's description.")
    message = serializers.CharField(help_text="For people: what, why and what next.")
    details = serializers.DictField()


class ErrorAnswer(serializers.Serializer[Any]):
    error = ErrorBody()


def describe_read(
    answer: Any,
    *,
    parameters: tuple[OpenApiParameter | type[serializers.Serializer[Any]], ...] = (),
    **options: Any,
) -> Callable[[View], View]:
    return extend_schema(
        parameters=list(parameters), responses={200: answer} | _errors((*ALWAYS, *ON_READ)), **options
    )


def describe_post(
    answer: Any,
    *,
    request: Any = None,
    status: int = 200,
    codes: tuple[str, ...] = (),
    others: dict[int, Any] | None = None,
    **options: Any,
) -> Callable[[View], View]:
    """`others`: further answers that are no errors, by status."""
    return extend_schema(
        request=request,
        parameters=[IDEMPOTENCY_KEY],
        responses={status: answer} | (others or {}) | _errors((*ALWAYS, *ON_POST, *codes)),
        **options,
    )


def describe_write(answer: Any, *, request: Any = None, **options: Any) -> Callable[[View], View]:
    """PUT and DELETE, which are idempotent by themselves."""
    return extend_schema(request=request, responses={200: answer} | _errors((*ALWAYS, *ON_WRITE)), **options)


def _errors(codes: tuple[str, ...]) -> dict[int, OpenApiResponse]:
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in codes:
        by_status[TABLE[code].status].append(code)
    return {
        status: OpenApiResponse(
            ErrorAnswer,
            description="; ".join(f"`{code}`: {TABLE[code].next_action}" for code in sorted(found)),
        )
        for status, found in sorted(by_status.items())
    }
