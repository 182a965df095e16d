"""Periodic jobs run once per period, however many clocks send them and however often a message is delivered."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from pool.models import LoopLease

PREFIX = "job:"
_SLACK = 0.9
"""Of the period: a clock is never exact."""


def claim_run(job: str, *, every: timedelta, now: datetime) -> bool:
    """True for the one who is to run the job now; everybody else gets False until the next period (FC-67)."""
    name, until, holder = f"{PREFIX}{job}", now + every * _SLACK, uuid.uuid4()
    _, is_new = LoopLease.objects.get_or_create(
        name=name, defaults={"holder": holder, "until": until, "beat_at": now}
    )
    if is_new:
        return True
    rows = LoopLease.objects.filter(name=name, until__lte=now)
    return bool(rows.update(holder=holder, until=until, beat_at=now))
