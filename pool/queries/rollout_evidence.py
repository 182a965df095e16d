"""How far each gate's evidence was over time, and what traffic each release really had: for the rollout's page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import FloatField, Max
from django.db.models.functions import Cast, Extract, Floor

from pool.domain.gates import ALPHA, GATES, read_gates
from pool.domain.verdict import FAIR_BAR
from pool.models import Rollout
from pool.queries.cells import CellFilter, find_series, sum_counts
from pool.queries.rollout_rows import RolloutRow

LONGEST = timedelta(hours=6)
MOST_POINTS = 240
"""Of each gate: more than the picture has pixels for."""
_RESOLUTION_S = 10
MEASURED_FOR = timedelta(seconds=60)


@dataclass(frozen=True)
class GateLine:
    """Oldest first. `worse`, `not_worse`: the part of the way to the bar, 1 = reached; below 0 where the evidence
    points the other way. `outcomes`: worse, not_yet or not_worse."""

    gate: str
    dry_run: bool
    at: tuple[datetime, ...]
    worse: tuple[float, ...]
    not_worse: tuple[float, ...]
    outcomes: tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """A step that began, or how it ended."""

    at: datetime
    text: str


@dataclass(frozen=True)
class Evidence:
    """`start` and `end`: of the picture, six hours at most."""

    rollout: str
    start: datetime
    end: datetime
    gates: tuple[GateLine, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Measured:
    """Requests that ended in the last minute by release; `total` 0: none did, so nothing is known of the shares."""

    total: int
    by_release: dict[int, int]


def load_evidence(rollout: Rollout, *, now: datetime) -> Evidence:
    """2 queries."""
    end = rollout.ended_at or now
    start = max(rollout.weighted_at or rollout.created_at, end - LONGEST)
    end = max(end, start + timedelta(seconds=_RESOLUTION_S))
    return Evidence(
        rollout=rollout.pk,
        start=start,
        end=end,
        gates=_lines(rollout, start, end),
        marks=_marks(rollout, start, end),
    )


def load_measured(model: str, *, now: datetime) -> Measured:
    """2 queries."""
    series = find_series(CellFilter(model=model))
    counted = sum_counts(series, ("requests",), start=now - MEASURED_FOR, end=now, resolution_s=_RESOLUTION_S)
    by_release: dict[int, int] = {}
    for number, sums in counted.items():
        release = series[number].release
        by_release[release] = by_release.get(release, 0) + (sums["requests"] or 0)
    return Measured(sum(by_release.values()), by_release)


def count_step_requests(row: RolloutRow, *, now: datetime) -> dict[str, int]:
    """By lane, what the candidate has answered since the step began; a lane without any is left out. 2 queries."""
    if row.phase != "stepping":
        return {}
    series = find_series(CellFilter(model=row.model, releases=(row.candidate,)))
    begun = datetime.fromtimestamp(row.entered_at.timestamp() // _RESOLUTION_S * _RESOLUTION_S, tz=UTC)
    counted = sum_counts(series, ("requests",), start=begun, end=now, resolution_s=_RESOLUTION_S)
    requests: dict[str, int] = {}
    for number, sums in counted.items():
        lane = series[number].lane
        requests[lane] = requests.get(lane, 0) + (sums["requests"] or 0)
    return requests


def _lines(rollout: Rollout, start: datetime, end: datetime) -> tuple[GateLine, ...]:
    """The newest reading of each stretch of time, so that the picture ends with what is true now."""
    settings = read_gates(rollout.gates)
    worse_bar = math.log(max(1, len(settings.acting)) / ALPHA)
    stretch_s = max(_RESOLUTION_S, math.ceil((end - start).total_seconds() / MOST_POINTS))
    bucket = Floor(Cast(Extract("at", "epoch"), FloatField()) / float(stretch_s))
    newest = (
        rollout.readings.filter(at__gte=start, at__lte=end)
        .order_by()
        .annotate(bucket=bucket)
        .values("gate", "bucket")
        .annotate(newest=Max("id"))
        .values("newest")
    )
    rows = (
        rollout.readings.filter(pk__in=newest)
        .order_by("id")
        .values_list("gate", "at", "worse_log", "not_worse_log", "outcome")
    )
    by_gate: dict[str, list[tuple[datetime, float, float, str]]] = {}
    for gate, at, worse, not_worse, outcome in rows:
        by_gate.setdefault(gate, []).append((at, worse / worse_bar, not_worse / FAIR_BAR, outcome))
    return tuple(
        GateLine(gate, settings.by_gate[gate].dry_run, *_columns(by_gate[gate]))
        for gate in GATES
        if gate in by_gate
    )


def _columns(
    rows: list[tuple[datetime, float, float, str]],
) -> tuple[tuple[datetime, ...], tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    return (
        tuple(row[0] for row in rows),
        tuple(round(row[1], 4) for row in rows),
        tuple(round(row[2], 4) for row in rows),
        tuple(row[3] for row in rows),
    )


def _marks(rollout: Rollout, start: datetime, end: datetime) -> tuple[Mark, ...]:
    rows = rollout.events.filter(kind__in=("phase", "guard"), at__gte=start, at__lte=end).order_by("id")
    return tuple(Mark(row.at, row.text) for row in rows[:100])
