"""Stored cells of requests by what they count and when: the one way in for pages, API and loops.

Histograms are merged first, quantiles taken afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet, Sum

from pool.domain.cells import COUNTS, STAGES, SUMS, Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import RESOLUTIONS, Series

_KEY = ("model", "release", "replica", "lane", "tier", "label", "long_prompt", "region")


@dataclass(frozen=True, slots=True)
class CellFilter:
    """Empty = all. `region` None: requests by series; else by client region, with only `model` beside it."""

    model: str = ""
    releases: tuple[int, ...] = ()
    replicas: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    long_prompt: bool | None = None
    region: str | None = None


def find_series(wanted: CellFilter) -> dict[int, SeriesKey]:
    """By id."""
    rows: QuerySet[Any] = (
        Series.objects.filter(region="") if wanted.region is None else Series.objects.exclude(region="")
    )
    if wanted.model:
        rows = rows.filter(model=wanted.model)
    if wanted.region:
        rows = rows.filter(region=wanted.region)
    if wanted.long_prompt is not None:
        rows = rows.filter(long_prompt=wanted.long_prompt)
    for name, values in (
        ("release", wanted.releases),
        ("replica", wanted.replicas),
        ("lane", wanted.lanes),
        ("tier", wanted.tiers),
        ("label", wanted.labels),
    ):
        if values:
            rows = rows.filter(**{f"{name}__in": values})
    return {number: SeriesKey(*key) for number, *key in rows.values_list("pk", *_KEY)}


def list_stage(
    series: Iterable[int], stage: str, *, start: datetime, end: datetime, resolution_s: int
) -> list[tuple[int, datetime, bytes]]:
    """(series, at, histogram's bytes) in [start, end), where the stage has samples."""
    rows = _rows(series, start, end, resolution_s).exclude(**{stage: b""})
    return list(rows.values_list("series_id", "at", stage))


def list_cells(
    series: Iterable[int],
    *,
    start: datetime,
    end: datetime,
    resolution_s: int,
    stages: Iterable[str] = STAGES,
) -> list[tuple[int, datetime, Cell]]:
    """(series, at, cell) in [start, end), with the histograms of `stages` only."""
    kept = tuple(stages)
    rows = _rows(series, start, end, resolution_s)
    names = ("series_id", "at", *COUNTS, *SUMS, "outcomes", *kept)
    return [(values[0], values[1], _read_cell(values[2:], kept)) for values in rows.values_list(*names)]


def sum_counts(
    series: Iterable[int], names: Sequence[str], *, start: datetime, end: datetime, resolution_s: int
) -> dict[int, dict[str, int]]:
    """By series in [start, end): sums of some of COUNTS, added up by the database; without cells: missing. 1 query."""
    rows = _rows(series, start, end, resolution_s).order_by().values("series_id")
    sums = rows.annotate(**{f"sum_{name}": Sum(name) for name in names})
    return {row["series_id"]: {name: row[f"sum_{name}"] for name in names} for row in sums}


def sum_cells(cells: Iterable[Cell]) -> Cell:
    total = Cell()
    for cell in cells:
        total.add(cell)
    return total


def _rows(series: Iterable[int], start: datetime, end: datetime, resolution_s: int) -> QuerySet[Any]:
    table = RESOLUTIONS[resolution_s][0]
    rows: QuerySet[Any] = table.objects.filter(series_id__in=list(series), at__gte=start, at__lt=end)
    return rows.order_by("at")


def _read_cell(values: tuple[Any, ...], stages: tuple[str, ...]) -> Cell:
    counts, sums = values[: len(COUNTS)], values[len(COUNTS) : len(COUNTS) + len(SUMS)]
    outcomes, *histograms = values[len(COUNTS) + len(SUMS) :]
    return Cell(
        counts={name: count for name, count in zip(COUNTS, counts, strict=True) if count},
        sums={name: seconds for name, seconds in zip(SUMS, sums, strict=True) if seconds},
        outcomes=dict(outcomes),
        stages={
            stage: Histogram.from_bytes(bytes(content))
            for stage, content in zip(stages, histograms, strict=True)
            if content
        },
    )
