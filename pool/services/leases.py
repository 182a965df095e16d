"""Leases of loops: one owner at a time, taken over when they run out."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import transaction

from pool.models import LoopLease

LEASE_LENGTH = timedelta(seconds=5)


def claim_lease(name: str, holder: uuid.UUID, *, now: datetime) -> bool:
    """Takes or renews the lease; False while another holder's is valid."""
    until = now + LEASE_LENGTH
    with transaction.atomic():
        lease, created = LoopLease.objects.select_for_update().get_or_create(
            name=name, defaults={"holder": holder, "until": until, "beat_at": now}
        )
        if created:
            return True
        if lease.holder != holder and lease.until > now:
            return False
        LoopLease.objects.filter(name=name).update(holder=holder, until=until, beat_at=now)
    return True


def release_lease(name: str, holder: uuid.UUID, *, now: datetime) -> None:
    LoopLease.objects.filter(name=name, holder=holder).update(until=now)


def store_report(name: str, holder: uuid.UUID, report: dict[str, object]) -> None:
    """What the last pass did, for whoever asks why nothing moves."""
    LoopLease.objects.filter(name=name, holder=holder).update(report=report)
