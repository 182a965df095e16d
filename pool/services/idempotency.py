"""A POST that is repeated with its Idempotency-Key is done once and answered alike.

The record is written in the transaction of the change itself: both are there or neither. A repeated request
that comes while the first one runs waits for it at the unique index. What failed left nothing, so that a
repetition tries again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from django.conf import settings
from django.db import OperationalError, transaction
from django.utils import timezone

from pool.domain.errors import PoolError
from pool.models import IdempotencyRecord

LONGEST_KEY = 255
_LOCK_NOT_AVAILABLE = "55P03"


class IdempotencyConflict(PoolError):
    code: ClassVar[str] = "idempotency_conflict"


class RequestInProgress(PoolError):
    code: ClassVar[str] = "request_in_progress"


class InvalidIdempotencyKey(PoolError):
    code: ClassVar[str] = "invalid"


@dataclass(frozen=True)
class Asked:
    """One request: who, under which key, for what."""

    actor: str
    key: str
    path: str
    body_digest: str


@dataclass(frozen=True)
class Answer:
    """`body` holds JSON values only."""

    status: int
    body: dict[str, object]
    replayed: bool = False


def digest_body(method: str, path: str, body: bytes) -> str:
    """Keyed, because a body may hold a password."""
    text = f"{method} {path}\n".encode() + body
    return hmac.new(settings.SECRET_KEY.encode(), b"idempotency:" + text, hashlib.sha256).hexdigest()


def run_once(asked: Asked, work: Callable[[], Answer], *, hidden: tuple[str, ...] = ()) -> Answer:
    """The answer of `work`, or the one that it gave before. `hidden` fields are stored as null."""
    if not 1 <= len(asked.key) <= LONGEST_KEY or not (asked.key.isascii() and asked.key.isprintable()):
        raise InvalidIdempotencyKey("An Idempotency-Key has 1 to 255 printable ASCII characters.")
    with transaction.atomic():
        record, is_first = _claim(asked)
        if not is_first:
            return _replay(record, asked)
        answer = work()
        record.status = answer.status
        record.answer = {name: None if name in hidden else value for name, value in answer.body.items()}
        record.save(update_fields=["status", "answer"])
    return answer


def _claim(asked: Asked) -> tuple[IdempotencyRecord, bool]:
    try:
        return IdempotencyRecord.objects.get_or_create(
            actor=asked.actor,
            key=asked.key,
            defaults={
                "path": asked.path[:512],
                "body_digest": asked.body_digest,
                "created_at": timezone.now(),
            },
        )
    except OperationalError as exc:
        if getattr(exc.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise RequestInProgress(
            "A request with this Idempotency-Key still runs. Repeat it in a moment to get its answer."
        ) from exc


def _replay(record: IdempotencyRecord, asked: Asked) -> Answer:
    if not hmac.compare_digest(record.body_digest, asked.body_digest):
        raise IdempotencyConflict(
            "This Idempotency-Key was used for another request. Choose a new one.", path=record.path
        )
    assert record.status is not None, "stored with its change"
    return Answer(status=record.status, body=record.answer or {}, replayed=True)
