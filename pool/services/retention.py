"""Drops rows whose time is over, in pieces that hold no lock for long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.sessions.models import Session
from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from pool.models import (
    Alert,
    GatewayInstance,
    GatewaySnapshot,
    GoldenRun,
    IdempotencyRecord,
    Intent,
    KeyUsage,
    Notice,
    PhaseChange,
    Replica,
    Restriction,
    UsagePosition,
)
from pool.services.runs import claim_run

KEEP_ANSWERS = timedelta(days=1)
KEEP_INTENTS = timedelta(days=30)
KEEP_STOPPED = timedelta(days=30)
KEEP_USAGE = timedelta(days=400)
KEEP_ALERTS = timedelta(days=396)
"""As long as the cells that they link to: 13 months."""
KEEP_NOTICES = timedelta(days=30)
KEEP_GOLDEN = timedelta(days=90)
GOLDEN_PER_ROLLOUT = 50
"""Newest runs of a rollout, or recordings of a model, that are kept within that time."""
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
        "notices": _drop(Notice.objects.filter(due_at=None, created_at__lt=now - KEEP_NOTICES)),
        "alerts": _drop(Alert.objects.filter(closed_at__lt=now - KEEP_ALERTS)),
        "restrictions": _drop(Restriction.objects.filter(ended_at__lt=now - KEEP_ALERTS)),
        "golden_runs": _drop(_old_golden_runs(now)),
        "snapshots": _drop(GatewaySnapshot.objects.filter(at__lt=now - KEEP_ANSWERS)),
    }


def _old_golden_runs(now: datetime) -> QuerySet[Any]:
    """Never of a rollout that goes on: its judgement rests on them."""
    over = GoldenRun.objects.filter(phase__in=["done", "failed"]).exclude(
        rollout__isnull=False, rollout__ended_at=None
    )
    place = Window(RowNumber(), partition_by=[F("rollout"), F("model")], order_by=F("id").desc())
    return over.annotate(place=place).filter(
        Q(asked_at__lt=now - KEEP_GOLDEN) | Q(place__gt=GOLDEN_PER_ROLLOUT)
    )


def _drop(rows: QuerySet[Any]) -> int:
    total = 0
    while True:
        ids = list(rows.values_list("pk", flat=True)[:PIECE])
        if not ids:
            return total
        total += rows.model._default_manager.filter(pk__in=ids).delete()[0]
