"""Adds cells, gauges and request records to the stored ones, and moves the stream's position, in one transaction:
nothing counts twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from pool.domain.cells import COUNTS, STAGES, SUMS, Cell, SeriesKey
from pool.domain.gauges import (
    COUNTERS,
    GAUGES,
    STEPS,
    GaugeCell,
    Subject,
    pack_counters,
    pack_gauges,
    unpack_counters,
    unpack_gauges,
)
from pool.domain.histogram import Histogram
from pool.models import RESOLUTIONS, GaugeSubject, RequestRecord, Series, StreamPosition
from pool.telemetry.partitions import ensure_partition, floor_to

Cells = Mapping[tuple[SeriesKey, datetime], Cell]
Gauges = Mapping[tuple[Subject, datetime], GaugeCell]


def read_position(stream: str) -> str:
    """The id after which to read on; `0` before the first."""
    return StreamPosition.objects.filter(pk=stream).values_list("last_id", flat=True).first() or "0"


def move_position(stream: str, last_id: str, *, unreadable: int, now: datetime) -> None:
    StreamPosition.objects.update_or_create(pk=stream, defaults={"last_id": last_id, "updated_at": now})
    if unreadable:
        StreamPosition.objects.filter(pk=stream).update(dropped=F("dropped") + unreadable)


def add_cells(cells: Cells) -> None:
    """At every resolution. `at`: any time within the cell's second."""
    with transaction.atomic():
        for resolution_s, (table, _) in RESOLUTIONS.items():
            _add_at(table, cells, timedelta(seconds=resolution_s))


def add_gauges(cells: Gauges) -> None:
    with transaction.atomic():
        for resolution_s, (_, table) in RESOLUTIONS.items():
            _add_gauges_at(table, cells, timedelta(seconds=resolution_s))


def add_requests(records: Iterable[RequestRecord]) -> None:
    listed = list(records)
    for record in listed:
        ensure_partition("pool_requestrecord", record.at)
    RequestRecord.objects.bulk_create(listed, ignore_conflicts=True)


def _add_at(table: type[Any], cells: Cells, period: timedelta) -> None:
    folded: dict[tuple[int, datetime], Cell] = {}
    for (key, at), cell in cells.items():
        folded.setdefault((_series_id(key), floor_to(at, period)), Cell()).add(cell)
    for (series, at), cell in sorted(folded.items(), key=lambda item: item[0]):
        ensure_partition(table._meta.db_table, at)
        stored = table.objects.select_for_update().filter(series_id=series, at=at).first()
        if stored is not None:
            cell.add(_read_row(stored))
        _write(table, {"series_id": series, "at": at}, _cell_values(cell), exists=stored is not None)


def _add_gauges_at(table: type[Any], cells: Gauges, period: timedelta) -> None:
    folded: dict[tuple[int, datetime], tuple[Subject, GaugeCell]] = {}
    for (subject, at), cell in cells.items():
        found = folded.setdefault((_subject_id(subject), floor_to(at, period)), (subject, GaugeCell()))
        found[1].add(cell)
    for (number, at), (subject, cell) in sorted(folded.items(), key=lambda item: item[0]):
        ensure_partition(table._meta.db_table, at)
        stored = table.objects.select_for_update().filter(subject_id=number, at=at).first()
        if stored is not None:
            cell.add(read_gauges(subject.kind, stored))
        values: dict[str, Any] = {
            "gauges": pack_gauges(cell.gauges, GAUGES[subject.kind]),
            "counters": pack_counters(cell.counters, COUNTERS[subject.kind]),
            **{step: cell.steps[step].to_bytes() for step in STEPS if step in cell.steps},
        }
        _write(table, {"subject_id": number, "at": at}, values, exists=stored is not None)


def read_gauges(kind: str, row: Any) -> GaugeCell:
    return GaugeCell(
        gauges=unpack_gauges(bytes(row.gauges), GAUGES[kind]),
        counters=unpack_counters(bytes(row.counters), COUNTERS[kind]),
        steps={
            step: Histogram.from_bytes(bytes(content)) for step in STEPS if (content := getattr(row, step))
        },
    )


def _write(table: type[Any], place: dict[str, Any], values: dict[str, Any], *, exists: bool) -> None:
    if exists:
        table.objects.filter(**place).update(**values)
    else:
        table.objects.create(**place, **values)


def _read_row(row: Any) -> Cell:
    return Cell(
        counts={name: getattr(row, name) for name in COUNTS},
        sums={name: getattr(row, name) for name in SUMS},
        outcomes=row.outcomes,
        stages={
            stage: Histogram.from_bytes(bytes(content))
            for stage in STAGES
            if (content := getattr(row, stage))
        },
    )


def _cell_values(cell: Cell) -> dict[str, Any]:
    return {
        **{name: cell.counts.get(name, 0) for name in COUNTS},
        **{name: cell.sums.get(name, 0.0) for name in SUMS},
        "outcomes": cell.outcomes,
        **{stage: histogram.to_bytes() for stage, histogram in cell.stages.items()},
    }


def _series_id(key: SeriesKey) -> int:
    values = {name: getattr(key, name) for name in key.__slots__}
    return int(Series.objects.get_or_create(**values)[0].pk)


def _subject_id(subject: Subject) -> int:
    values = {name: getattr(subject, name) for name in subject.__slots__}
    return int(GaugeSubject.objects.get_or_create(**values)[0].pk)
