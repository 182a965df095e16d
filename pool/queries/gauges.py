"""Stored gauges of replicas, devices and processes by what they are of and when: the one way in for all readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import BigIntegerField, BinaryField, F, Func, QuerySet, Value
from django.db.models.functions import Length

from pool.domain.gauges import (
    COUNTERS,
    GAUGE_BYTES,
    GAUGES,
    STEPS,
    Gauge,
    GaugeCell,
    Subject,
    unpack_counters,
    unpack_gauges,
)
from pool.domain.histogram import Histogram
from pool.models import RESOLUTIONS, GaugeSubject

HORIZON = timedelta(seconds=30)
"""What was told longer ago says nothing about now, not even with its age."""
AHEAD = timedelta(seconds=5)
"""Clocks of hosts differ; a cell may lie a little ahead of this one's."""
_SUBJECT = ("kind", "name", "node", "model", "release", "lane")


def find_subjects(
    kind: str,
    *,
    names: Iterable[str] | None = None,
    model: str = "",
    node: str = "",
    releases: Iterable[int] = (),
    lanes: Iterable[str] = (),
) -> dict[int, Subject]:
    """By id. `names` None and the others empty: all. A name has several where its lane or release changed. 1 query."""
    rows: QuerySet[Any] = GaugeSubject.objects.filter(kind=kind)
    if names is not None:
        rows = rows.filter(name__in=list(names))
    for name, wanted in (("model", model), ("node", node)):
        if wanted:
            rows = rows.filter(**{name: wanted})
    for name, several in (("release", list(releases)), ("lane", list(lanes))):
        if several:
            rows = rows.filter(**{f"{name}__in": several})
    return {number: Subject(*values) for number, *values in rows.values_list("pk", *_SUBJECT)}


def list_gauge_cells(
    subjects: Mapping[int, Subject],
    start: datetime,
    end: datetime,
    resolution_s: int,
    *,
    steps: Iterable[str] = STEPS,
) -> list[tuple[int, datetime, GaugeCell]]:
    """(subject's id, at, cell) in [start, end) by time, with the histograms of `steps` only. 1 query."""
    kept = tuple(steps)
    rows = _rows(subjects, start, end, resolution_s).values_list(
        "subject_id", "at", "gauges", "counters", *kept
    )
    return [
        (
            number,
            at,
            _read_cell(subjects[number].kind, gauges, counters, dict(zip(kept, histograms, strict=True))),
        )
        for number, at, gauges, counters, *histograms in rows
    ]


def list_gauge_bytes(
    subjects: Iterable[int], start: datetime, end: datetime, resolution_s: int
) -> list[tuple[int, datetime, bytes]]:
    """(subject's id, at, as `pack_gauges` wrote it): for those who read few gauges of many cells. 1 query."""
    return list(_rows(subjects, start, end, resolution_s).values_list("subject_id", "at", "gauges"))


def list_counters(
    subjects: Mapping[int, Subject], start: datetime, end: datetime, resolution_s: int
) -> list[tuple[int, datetime, dict[str, float]]]:
    """(subject's id, at, increases within the cell); what was not counted is missing. 1 query."""
    rows = _rows(subjects, start, end, resolution_s).values_list("subject_id", "at", "counters")
    return [
        (number, at, unpack_counters(bytes(content), COUNTERS[subjects[number].kind]))
        for number, at, content in rows
    ]


def newest_gauges(
    subjects: Mapping[int, Subject], *, now: datetime, horizon: timedelta = HORIZON
) -> dict[int, tuple[datetime, dict[str, Gauge]]]:
    """By subject's id: when the newest second began that has anything, and the newest of each gauge: of that second,
    else of the latest ten seconds that have it (some are read less often). Who told nothing within `horizon` is
    missing. 2 queries.
    """
    found: dict[int, tuple[datetime, dict[str, Gauge]]] = {}
    start, end = now - horizon, now + AHEAD
    newest = _rows(subjects, start, end, 1).order_by("subject_id", "-at").distinct("subject_id")
    for rows in (_rows(subjects, start, end, 10), newest):
        for number, at, content in rows.values_list("subject_id", "at", "gauges"):
            gauges = unpack_gauges(bytes(content), GAUGES[subjects[number].kind])
            found[number] = (at, {**found.get(number, (at, {}))[1], **gauges})
    return found


def sum_counters(
    subjects: Mapping[int, Subject], start: datetime, end: datetime, resolution_s: int
) -> dict[int, dict[str, float]]:
    """By subject's id: increases within the time; what was never counted is missing. 1 query."""
    sums: dict[int, dict[str, float]] = {}
    for number, _, increases in list_counters(subjects, start, end, resolution_s):
        mine = sums.setdefault(number, {})
        for name, increase in increases.items():
            mine[name] = mine.get(name, 0.0) + increase
    return sums


def list_gauge_slices(
    subjects: Iterable[int],
    start: datetime,
    end: datetime,
    resolution_s: int,
    *,
    first: int,
    count: int,
) -> list[tuple[int, int, bytes]]:
    """(subject's id, epoch second, bytes of `count` gauges from the one with index `first` on), in any order: fewer
    where the row ends among them. 1 query that carries nothing else: for arrays over many cells.
    """
    rows = _rows(subjects, start, end, resolution_s).order_by()
    kept = rows.annotate(size=Length("gauges")).filter(size__gt=first * GAUGE_BYTES)
    cut = Func(
        F("gauges"),
        Value(first * GAUGE_BYTES + 1),
        Value(count * GAUGE_BYTES),
        function="substring",
        output_field=BinaryField(),
    )
    second = Func(
        F("at"), template="(EXTRACT(EPOCH FROM %(expressions)s))::bigint", output_field=BigIntegerField()
    )
    found = kept.annotate(cut=cut, second=second).values_list("subject_id", "second", "cut")
    return [(number, at, bytes(content)) for number, at, content in found]


def offset_of(kind: str, name: str) -> int:
    """Where a gauge's low, total, high and count begin in the bytes of a row of this kind; beyond its end: absent."""
    return GAUGES[kind].index(name) * GAUGE_BYTES


def sum_gauges(cells: Iterable[GaugeCell]) -> GaugeCell:
    total = GaugeCell()
    for cell in cells:
        total.add(cell)
    return total


def _rows(subjects: Iterable[int], start: datetime, end: datetime, resolution_s: int) -> QuerySet[Any]:
    table = RESOLUTIONS[resolution_s][1]
    rows: QuerySet[Any] = table.objects.filter(subject_id__in=list(subjects), at__gte=start, at__lt=end)
    return rows.order_by("at")


def _read_cell(kind: str, gauges: bytes, counters: bytes, histograms: Mapping[str, bytes]) -> GaugeCell:
    return GaugeCell(
        gauges=unpack_gauges(bytes(gauges), GAUGES[kind]),
        counters=unpack_counters(bytes(counters), COUNTERS[kind]),
        steps={step: Histogram.from_bytes(bytes(content)) for step, content in histograms.items() if content},
    )
