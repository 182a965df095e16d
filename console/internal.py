"""What gateways ask web for: tokenizers by hash and, while Redis shows no sign of life, routing tables; what they
tell it then: beats and the states that pages show."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import zlib
from typing import Any

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from console.error_answers import answer_failure
from console.errors import make_failure
from pool.domain.signing import derive_internal_token
from pool.queries.tokenizers import find_tokenizer_file
from pool.services.errors import Invalid, not_found
from pool.services.gateways import note_beat, note_state
from pool.services.routing import find_newer_table

LONGEST_BEAT = 512 * 1024
LONGEST_STATE = 8 * 1024 * 1024
_APPLIED = re.compile(r"(\d{1,18})\.(\d{1,18})")


@require_GET
def routing_table(request: HttpRequest) -> HttpResponseBase:
    """200 with a newer table's bytes, else 204. The request is heartbeat and acknowledgement."""
    if not _is_gateway(request):
        return _refuse(request)
    applied = _APPLIED.fullmatch(request.GET.get("applied", ""))
    if applied is None:
        raise Invalid("`applied` is EPOCH.VERSION.")
    beat = _read_beat(request)
    if beat is not None:
        note_beat(beat, via="web", now=timezone.now())
    content = find_newer_table(int(applied[1]), int(applied[2]))
    if content is None:
        return HttpResponse(status=204)
    return HttpResponse(content, content_type="application/octet-stream")


@require_GET
def tokenizer_file(request: HttpRequest, digest: str) -> HttpResponseBase:
    """200 with the bytes of that SHA-256, which never change; 404 if nobody has stored them."""
    if not _is_gateway(request):
        return _refuse(request)
    content = find_tokenizer_file(digest)
    if content is None:
        raise not_found("tokenizer file", digest)
    answer = HttpResponse(content, content_type="application/octet-stream")
    answer["Cache-Control"] = "private, max-age=31536000, immutable"
    return answer


@csrf_exempt
@require_POST
def gateway_state(request: HttpRequest) -> HttpResponseBase:
    """204. The body is JSON under zlib: what a gateway otherwise writes to Redis each second."""
    if not _is_gateway(request):
        return _refuse(request)
    note_state(request.GET.get("gateway", ""), _read_state(request.body), now=timezone.now())
    return HttpResponse(status=204)


def _refuse(request: HttpRequest) -> HttpResponseBase:
    return answer_failure(
        request, make_failure("not_authenticated", "Only gateways of this installation ask here.")
    )


def _is_gateway(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    expected = derive_internal_token(settings.SECRET_KEY)
    return hmac.compare_digest(f"{scheme.lower()} {token}".encode(), f"bearer {expected}".encode())


def _read_beat(request: HttpRequest) -> dict[str, Any] | None:
    """None where the header is missing; a gateway's first question has none."""
    text = request.headers.get("X-Sluice-Heartbeat", "")
    if not text:
        return None
    try:
        beat = orjson.loads(base64.urlsafe_b64decode(text.encode())) if len(text) <= LONGEST_BEAT else None
    except (binascii.Error, ValueError) as exc:
        raise Invalid("The heartbeat is no base64 of JSON.") from exc
    if not isinstance(beat, dict) or beat.get("id") != request.GET.get("gateway"):
        raise Invalid("The heartbeat is not that of the named gateway.")
    return beat


def _read_state(body: bytes) -> dict[str, Any]:
    reader = zlib.decompressobj()
    try:
        # As it may be written by what is no gateway of this version, it is not unpacked beyond all measure.
        content = reader.decompress(body, LONGEST_STATE)
        state = orjson.loads(content) if reader.eof else None
    except (zlib.error, ValueError) as exc:
        raise Invalid("The state is no JSON under zlib.") from exc
    # PostgreSQL stores no NUL, however it is spelled.
    if not isinstance(state, dict) or b"\\u0000" in content:
        raise Invalid(f"The state is no JSON object of at most {LONGEST_STATE} bytes without NUL.")
    return state
