"""Masked texts of requests: shown to who may see them, and forgotten."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from pool.models import CapturedText, Key
from pool.queries.captures import CaptureView, find_capture
from pool.services.audit import Actor, record
from pool.services.errors import not_found

KEY_CHARACTERS = 12
"""Of its HMAC, as facts and records have it."""


def read_text(request_id: str, *, now: datetime, actor: Actor) -> CaptureView:
    """Who has read it stands in the audit. Raises NotFound."""
    with transaction.atomic():
        found = find_capture(request_id, now=now)
        if found is None:
            raise not_found("text of request", request_id)
        record(actor, "text.read", subject=f"request/{found.request_id}", model=found.model)
    return found


def forget_texts(key: Key, *, actor: Actor) -> int:
    """Of a key that keeps none any more; within a transaction of the caller's. How many they were."""
    count, _ = CapturedText.objects.filter(key=key.digest[:KEY_CHARACTERS]).delete()
    if count:
        record(actor, "text.forget", subject=f"key/{key.name}", texts=count)
    return count


def drop_expired_texts(now: datetime) -> int:
    return CapturedText.objects.filter(kept_until__lte=now).delete()[0]
