"""Celery tasks: ids in, one call. Safe to run twice; a lost one costs a second, because the loops pass anyway."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from pool.services.retention import drop_old_rows_once
from pool.services.wakeups import note_probe
from pool.telemetry.dead_series import drop_dead_series
from pool.telemetry.maintenance import keep_partitions
from workers.wake import WAKE


@shared_task(name="wake_loops", expires=10)  # type: ignore[untyped-decorator]
def wake_loops(**_: object) -> None:
    """Wakes every loop of the process that takes the task."""
    WAKE.set_all()


@shared_task(name="probe_queue", expires=60)  # type: ignore[untyped-decorator]
def probe_queue(*, node: str, sent_at: str, **_: object) -> None:
    """Proves that the node's queue is served end to end (FC-46)."""
    note_probe(node, sent_at=sent_at, now=timezone.now())


@shared_task(name="drop_old_rows", expires=3600)  # type: ignore[untyped-decorator]
def drop_old_rows_task(**_: object) -> None:
    drop_old_rows_once(timezone.now())


@shared_task(name="keep_partitions", expires=600)  # type: ignore[untyped-decorator]
def keep_partitions_task(**_: object) -> None:
    keep_partitions(timezone.now())
    drop_dead_series(timezone.now())
