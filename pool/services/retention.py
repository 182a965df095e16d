"""Drops rows whose time is over, in pieces that hold no lock for long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.sessions.models import Session
from django.db.models import QuerySet

from pool.models import (
    GatewayInstance,
    GatewaySnapshot,
    IdempotencyRecord,
    Intent,
    KeyUsage,
    PhaseChange,
    Replica,
    UsagePosition,
)
from pool.services.runs import claim_run

KEEP_ANSWERS = timedelta(days=1)
KEEP_INTENTS = timedelta(days=30)
KEEP_STOPPED = timedelta(days=30)
KEEP_USAGE = timedelta(days=400)
KEEP_ENDED_RUNS = timedelta(days=40)
"""How far the totals of a gateway's run were booked, after it ended: by then no gateway can send them again."""
EVERY = timedelta(hours=1)
PIECE = 2000


def drop_old_rows_once(now: datetime) -> dict[str, int]:
    """The periodic job: empty when another run of this period did it already."""
    return drop_old_rows(now) if claim_run("old rows", every=EVERY, now=now) else {}


def drop_old_rows(now: datetime) -> dict[str, int]:
    """Idempotent; returns how many rows went, by kind."""
    return {
        "answers": _drop(IdempotencyRecord.objects.filter(created_at__lt=now - KEEP_ANSWERS)),
        "sessions": _drop(Session.objects.filter(expire_date__lt=now)),
        "intents": _drop(
            Intent.objects.filter(created_at__lt=now - KEEP_INTENTS).exclude(phase__in=["pending", "claimed"])
        ),
        "phases": _drop(
            PhaseChange.objects.filter(at__lt=now - KEEP_STOPPED, replica__phase__in=["stopped", "failed"])
        ),
        "replicas": _drop(
            Replica.objects.filter(phase="stopped", wish="stop", phase_entered_at__lt=now - KEEP_STOPPED)
        ),
        "gateways": _drop(GatewayInstance.objects.filter(gone_at__lt=now - KEEP_ANSWERS)),
        "usage": _drop(KeyUsage.objects.filter(day__lt=(now - KEEP_USAGE).date())),
        "usage_positions": _drop(
            UsagePosition.objects.filter(totals__ended=True, updated_at__lt=now - KEEP_ENDED_RUNS)
        ),
        "snapshots": _drop(GatewaySnapshot.objects.filter(at__lt=now - KEEP_ANSWERS)),
    }


def _drop(rows: QuerySet[Any]) -> int:
    total = 0
    while True:
        ids = list(rows.values_list("pk", flat=True)[:PIECE])
        if not ids:
            return total
        total += rows.model._default_manager.filter(pk__in=ids).delete()[0]
