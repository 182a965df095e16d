"""Times of a model's requests as pictures: time × latency, two releases against each other, regions over time.

Histograms are merged first and quantiles taken afterwards (FC-30). What has no samples is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from django.db.models import Sum

from pool.domain.heatmap import (
    ENOUGH_SAMPLES,
    LARGEST_ROWS,
    Columns,
    Rows,
    choose_rows,
    is_beyond_top,
)
from pool.domain.histogram import LAST_BUCKET
from pool.domain.significance import compare_shares, find_significant
from pool.models import RESOLUTIONS
from pool.queries.cells import CellFilter, find_series
from pool.queries.data_states import DataState, load_data_state
from pool.queries.histograms import Counts, Seconds, Summed, load_by_group, load_summed

QUANTILES = tuple(ENOUGH_SAMPLES)
DIFFERENCE_COLUMNS, DIFFERENCE_ROWS = 60, 30
"""Fewer than a heatmap's: a cell needs requests of both releases to say anything."""
REGION_COLUMNS, MOST_REGIONS = 120, 20
OTHER_REGIONS = "…"
_DEFAULT_SPAN = (230, 580)
"""Buckets of 10 ms to 10 s: the rows of a picture without samples."""


@dataclass(frozen=True)
class Line:
    """A quantile by column, in seconds; None without samples. `enough`: samples suffice for this quantile.
    `beyond_top`: all that is known is that it is at least an hour (FC-62)."""

    quantile: float
    seconds: tuple[float | None, ...]
    enough: tuple[bool, ...]
    beyond_top: tuple[bool, ...]


@dataclass(frozen=True)
class Summary:
    """Of the whole range. Times in seconds, None without samples."""

    samples: int
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    beyond_top: bool


@dataclass(frozen=True)
class LatencyHeatmap:
    """`counts[row][column]`: samples between `edges_s[row]` and `edges_s[row + 1]`, lowest first; the lowest edge of
    all stands for 0 and, with `has_top`, the highest for everything longer. `samples`: by column, all rows."""

    model: str
    stage: str
    start: datetime
    end: datetime
    step_s: int
    resolution_s: int
    edges_s: tuple[float, ...]
    has_top: bool
    counts: tuple[tuple[int, ...], ...]
    samples: tuple[int, ...]
    lines: tuple[Line, ...]
    total: Summary
    data: DataState


@dataclass(frozen=True)
class DifferenceHeatmap:
    """`differences[row][column]`: share of the release's samples of that column minus the base's; None where one has
    none. `significant`: by Fisher's exact test with Holm's correction for all cells, at 5 %; what is not is shown grey.
    `range_differences` and `range_significant`: the same by row for the range as a whole, which shows less of it.
    `summaries`: of base and release over the range."""

    model: str
    stage: str
    base: int
    release: int
    start: datetime
    end: datetime
    step_s: int
    edges_s: tuple[float, ...]
    has_top: bool
    differences: tuple[tuple[float | None, ...], ...]
    significant: tuple[tuple[bool, ...], ...]
    range_differences: tuple[float | None, ...]
    range_significant: tuple[bool, ...]
    base_samples: tuple[int, ...]
    release_samples: tuple[int, ...]
    summaries: tuple[Summary, Summary]
    base_data: DataState
    release_data: DataState


@dataclass(frozen=True)
class RegionHeatmap:
    """`seconds[region][column]`: the quantile; None without samples. Regions by requests, the rest together as "…".
    `unknown_requests`: of the range's requests, those whose region nobody told."""

    model: str
    stage: str
    quantile: float
    start: datetime
    end: datetime
    step_s: int
    regions: tuple[str, ...]
    requests: tuple[int, ...]
    seconds: tuple[tuple[float | None, ...], ...]
    samples: tuple[tuple[int, ...], ...]
    enough: tuple[tuple[bool, ...], ...]
    unknown_requests: int
    data: DataState


def load_heatmap(wanted: CellFilter, stage: str, columns: Columns, *, now: datetime) -> LatencyHeatmap:
    """5 queries, whatever the range."""
    series = find_series(wanted)
    summed = load_summed(series, stage, columns)
    rows = rows_of(summed)
    samples = summed.samples
    return LatencyHeatmap(
        model=wanted.model,
        stage=stage,
        start=columns.start,
        end=columns.end,
        step_s=columns.step_s,
        resolution_s=columns.resolution_s,
        edges_s=rows.edges_s(),
        has_top=rows.with_top(),
        counts=tuple(tuple(row) for row in summed.fold(rows).tolist()),
        samples=tuple(samples.tolist()),
        lines=tuple(line_of(summed, quantile) for quantile in QUANTILES),
        total=summary_of(summed),
        data=load_data_state(series, columns, (samples > 0).tolist(), now=now),
    )


def load_difference(
    wanted: CellFilter, stage: str, columns: Columns, *, base: int, release: int, now: datetime
) -> DifferenceHeatmap:
    """11 queries. The filter's own releases are not looked at."""
    loaded = []
    for number in (base, release):
        series = find_series(replace(wanted, releases=(number,)))
        summed = load_summed(series, stage, columns)
        weights = _weights(summed, _count_requests(series, columns), stage)
        state = load_data_state(series, columns, (summed.samples > 0).tolist(), now=now)
        loaded.append((summed, weights, state))
    (first, first_weights, first_state), (second, second_weights, second_state) = loaded
    rows = rows_of(Summed(first.counts + second.counts, first.sums_s + second.sums_s), DIFFERENCE_ROWS)
    sides = (first.fold(rows), second.fold(rows))
    trials = (sides[0] * first_weights, sides[1] * second_weights)
    whole = _subtract_shares(*(side.sum(axis=1, keepdims=True) for side in sides))
    whole_found = _test_cells(*(side.sum(axis=1, keepdims=True) for side in trials))
    return DifferenceHeatmap(
        model=wanted.model,
        stage=stage,
        base=base,
        release=release,
        start=columns.start,
        end=columns.end,
        step_s=columns.step_s,
        edges_s=rows.edges_s(),
        has_top=rows.with_top(),
        differences=_subtract_shares(*sides),
        significant=_test_cells(*trials),
        range_differences=tuple(row[0] for row in whole),
        range_significant=tuple(row[0] for row in whole_found),
        base_samples=tuple(first.samples.tolist()),
        release_samples=tuple(second.samples.tolist()),
        summaries=(summary_of(first), summary_of(second)),
        base_data=first_state,
        release_data=second_state,
    )


def load_regions(
    model: str, stage: str, columns: Columns, *, quantile: float, now: datetime
) -> RegionHeatmap:
    """8 queries."""
    series = find_series(CellFilter(model=model, region=""))
    asked = {number: key.region for number, key in series.items()}
    requests = _count_by_region(asked, columns)
    named = sorted(requests, key=lambda region: (-requests[region], region))
    shown = named if len(named) <= MOST_REGIONS else [*named[: MOST_REGIONS - 1], OTHER_REGIONS]
    places = {region: min(place, len(shown) - 1) for place, region in enumerate(named)}
    groups = {number: places[region] for number, region in asked.items() if region in places}
    summed = load_by_group(groups, len(shown), stage, columns)
    lines = [line_of(one, quantile) for one in summed]
    filled = [any(one.samples[column] for one in summed) for column in range(columns.count)]
    everything = _count_requests(find_series(CellFilter(model=model)), columns).sum()
    totals = [0] * len(shown)
    for region, place in places.items():
        totals[place] += requests[region]
    return RegionHeatmap(
        model=model,
        stage=stage,
        quantile=quantile,
        start=columns.start,
        end=columns.end,
        step_s=columns.step_s,
        regions=tuple(shown),
        requests=tuple(totals),
        seconds=tuple(line.seconds for line in lines),
        samples=tuple(tuple(one.samples.tolist()) for one in summed),
        enough=tuple(line.enough for line in lines),
        unknown_requests=max(0, int(everything) - sum(requests.values())),
        data=load_data_state(asked, columns, filled, now=now),
    )


def rows_of(summed: Summed, largest: int = LARGEST_ROWS) -> Rows:
    return choose_rows(*(summed.span() or _DEFAULT_SPAN), largest=largest)


def line_of(summed: Summed, quantile: float) -> Line:
    seconds = _nullable(summed.quantile(quantile))
    return Line(
        quantile=quantile,
        seconds=seconds,
        enough=tuple((summed.samples >= ENOUGH_SAMPLES[quantile]).tolist()),
        beyond_top=tuple(is_beyond_top(value) for value in seconds),
    )


def summary_of(summed: Summed) -> Summary:
    total = summed.total()
    samples = int(total.samples[0])
    p50, p95, p99 = (_nullable(total.quantile(quantile))[0] for quantile in QUANTILES)
    return Summary(
        samples=samples,
        mean_s=float(total.sums_s[0]) / samples if samples else None,
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        beyond_top=bool(total.counts[0, LAST_BUCKET]),
    )


def _nullable(values: Seconds) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in values.tolist())


def _count_requests(series: Iterable[int], columns: Columns) -> Counts:
    """By column."""
    table = RESOLUTIONS[columns.resolution_s][0]
    rows = table.objects.filter(series_id__in=list(series), at__gte=columns.start, at__lt=columns.end)
    counts = np.zeros(columns.count, dtype=np.int64)
    for at, requests in rows.values("at").annotate(sum=Sum("requests")).values_list("at", "sum").order_by():
        counts[int((at - columns.start).total_seconds() // columns.step_s)] += requests
    return counts


def _count_by_region(regions: Mapping[int, str], columns: Columns) -> dict[str, int]:
    """Where there was any."""
    table = RESOLUTIONS[columns.resolution_s][0]
    rows = table.objects.filter(series_id__in=list(regions), at__gte=columns.start, at__lt=columns.end)
    found: dict[str, int] = {}
    for number, requests in rows.values_list("series_id").annotate(sum=Sum("requests")).order_by():
        found[regions[number]] = found.get(regions[number], 0) + requests
    return found


def _weights(summed: Summed, requests: Counts, stage: str) -> Seconds:
    """By column: the factor by which samples are made independent ones. The gaps of one stream are alike: a thousand of
    them say no more about a release than one request does."""
    if stage != "itl":
        return np.ones(len(requests))
    return np.minimum(1.0, requests / np.maximum(summed.samples, 1))


def _subtract_shares(base: Counts, release: Counts) -> tuple[tuple[float | None, ...], ...]:
    with np.errstate(invalid="ignore"):
        shares = release / release.sum(axis=0) - base / base.sum(axis=0)
    return tuple(_nullable(row) for row in shares)


def _test_cells(base: Seconds, release: Seconds) -> tuple[tuple[bool, ...], ...]:
    """Of independent samples. Cells in which both have none are no tests, and do not count for the correction."""
    mine, other = base.astype(np.int64), release.astype(np.int64)
    mine_total, other_total = mine.sum(axis=0), other.sum(axis=0)
    cells = np.argwhere((mine + other > 0) & (mine_total > 0) & (other_total > 0))
    p_values = [
        compare_shares(
            int(other[row, column]), int(other_total[column]), int(mine[row, column]), int(mine_total[column])
        )
        for row, column in cells
    ]
    found = np.zeros(base.shape, dtype=bool)
    for (row, column), is_significant in zip(cells, find_significant(p_values), strict=True):
        found[row, column] = is_significant
    return tuple(tuple(row) for row in found.tolist())
