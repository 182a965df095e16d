"""What happened to a model beside its requests, for the time axis of its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from pool.models import Alert, PhaseChange, Plan, RolloutEvent

MOST_EVENTS = 200
_PHASES = ("ready", "draining", "stopped", "failed", "starting")
"""Of a replica's phases those that change what serves; `starting` of a later generation is a restart."""


@dataclass(frozen=True)
class Event:
    """`kind`: plan, rollback, ready, restart, draining, stopped, failed, alert, alert_closed or rollout. `subject`:
    number of the plan, id of the replica or rollout, rule of the alert. `detail`: the comment or the reason; "" = none
    given."""

    at: datetime
    kind: str
    subject: str
    release: int | None
    lane: str
    detail: str


@dataclass(frozen=True)
class Events:
    """Oldest first; `omitted`: how many more there were."""

    events: tuple[Event, ...]
    omitted: int


def list_events(model: str, *, start: datetime, end: datetime, limit: int = MOST_EVENTS) -> Events:
    """In [start, end); of too many the newest. 9 queries."""
    plans = Plan.objects.filter(model__name=model, created_at__gte=start, created_at__lt=end)
    changes = PhaseChange.objects.filter(
        replica__release__model__name=model, at__gte=start, at__lt=end, phase__in=_PHASES
    ).exclude(phase="starting", generation__lte=1)
    newest_changes = changes.select_related("replica__release").order_by("-at")[:limit]
    opened = Alert.objects.filter(model=model, opened_at__gte=start, opened_at__lt=end)
    closed = Alert.objects.filter(model=model, closed_at__gte=start, closed_at__lt=end)
    moves = RolloutEvent.objects.filter(
        rollout__model__name=model, at__gte=start, at__lt=end, kind__in=("phase", "guard")
    )
    found = [
        *_read_plans(plans.order_by("-number")[:limit]),
        *_read_changes(newest_changes),
        *(_alert(row, row.opened_at, "alert") for row in opened.order_by("-opened_at")[:limit]),
        *(
            _alert(row, row.closed_at, "alert_closed")
            for row in closed.order_by("-closed_at")[:limit]
            if row.closed_at
        ),
        *_read_moves(moves.select_related("rollout__candidate").order_by("-at")[:limit]),
    ]
    newest = list(islice(sorted(found, key=lambda event: event.at, reverse=True), limit))
    total = sum(rows.count() for rows in (plans, changes, opened, closed, moves))
    return Events(tuple(reversed(newest)), total - len(newest))


def _alert(row: Alert, at: datetime, kind: str) -> Event:
    return Event(
        at=at, kind=kind, subject=row.rule, release=None, lane=row.lane, detail=f"{row.peak}: {row.subject}"
    )


def _read_moves(moves: Iterable[RolloutEvent]) -> Iterator[Event]:
    for move in moves:
        yield Event(
            at=move.at,
            kind="rollout",
            subject=move.rollout_id,
            release=move.rollout.candidate.number,
            lane="",
            detail=move.text,
        )


def _read_plans(plans: Iterable[Plan]) -> Iterator[Event]:
    for plan in plans:
        yield Event(
            at=plan.created_at,
            kind="plan" if plan.rollback_of is None else "rollback",
            subject=str(plan.number),
            release=None,
            lane="",
            detail=plan.comment,
        )


def _read_changes(changes: Iterable[PhaseChange]) -> Iterator[Event]:
    for change in changes:
        yield Event(
            at=change.at,
            kind="restart" if change.phase == "starting" else change.phase,
            subject=change.replica_id,
            release=change.replica.release.number,
            lane=change.replica.lane,
            detail=change.reason_text or change.reason_code,
        )
