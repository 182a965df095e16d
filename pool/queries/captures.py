"""Masked texts of requests whose key has opted in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pool.models import CapturedText


@dataclass(frozen=True)
class CapturedMessage:
    role: str
    """As the client said, or the field's name: prompt, input, instructions."""
    text: str


@dataclass(frozen=True)
class CaptureView:
    request_id: str
    at: datetime
    model: str
    status: int
    outcome: str
    input: tuple[CapturedMessage, ...]
    output: str
    kept_until: datetime


def find_capture(request_id: str, *, now: datetime) -> CaptureView | None:
    """None: not kept, or its time is over. 1 query."""
    row = CapturedText.objects.filter(pk=request_id, kept_until__gt=now).first()
    if row is None:
        return None
    return CaptureView(
        request_id=row.request_id,
        at=row.at,
        model=row.model,
        status=row.status,
        outcome=row.outcome,
        input=tuple(CapturedMessage(role, text) for role, text in row.input),
        output=row.output,
        kept_until=row.kept_until,
    )


def has_capture(request_id: str, *, now: datetime) -> bool:
    """1 query."""
    return CapturedText.objects.filter(pk=request_id, kept_until__gt=now).exists()
