"""Replica × time: use of the KV cache and the two fragmentation ratios, as arrays over stored gauges.

A column without a sample is None. A mean is over the column's samples, weighted by their number; where a ratio has a
sampled divisor (KV use), sums are divided, not means of shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import numpy as np

from pool.domain.gauges import GAUGE_BYTES, REPLICA_GAUGES, Subject
from pool.queries.ages import Age, age_of
from pool.queries.gauges import find_subjects, list_gauge_slices

MOST_COLUMNS: Final = 300
MOST_ROWS: Final = 256
_RESOLUTIONS: Final = ((timedelta(minutes=5), 1), (timedelta(hours=2), 10))
"""Up to this length of time cells of so many seconds are read; beyond, those of five minutes."""
_GAUGE: Final = np.dtype([("low", "<f8"), ("total", "<f8"), ("high", "<f8"), ("count", "<u4")])


_ABSENT: Final = b"\x00"
"""Gauges beyond a row's end: a count of 0."""


class RatioKind(StrEnum):
    KV_USE = "kv_use"
    """Blocks in use ÷ all but the null block; cached-free ones count as free."""
    KV_TAIL = "kv_tail"
    """Tokens that the held blocks fit and do not hold; 0 under 64 held blocks."""
    ALLOCATOR = "allocator"
    """Inactive split bytes ÷ reserved bytes of torch's allocator; nowhere but on CUDA."""


@dataclass(frozen=True)
class RatioRow:
    """One replica. `means`, `highs` (0 to 1) and `samples` have a place a column."""

    replica: str
    model: str
    release: int
    lane: str
    node: str
    means: tuple[float | None, ...]
    highs: tuple[float | None, ...]
    samples: tuple[int, ...]


@dataclass(frozen=True)
class RatioMap:
    kind: RatioKind
    start: datetime
    column_s: int
    columns: int
    rows: tuple[RatioRow, ...]
    left_out: int
    """Replicas beyond the largest number of rows: those with the lowest means."""
    newest: Age
    """When the newest column with a sample ends."""


@dataclass(frozen=True)
class _Grid:
    start_s: int
    column_s: int
    columns: int
    resolution_s: int

    @property
    def end_s(self) -> int:
        return self.start_s + self.column_s * self.columns


def load_ratio_map(
    kind: RatioKind, *, start: datetime, end: datetime, now: datetime, model: str = ""
) -> RatioMap:
    """At most 300 columns of whole seconds; `model` empty: the pool. 2 queries."""
    grid = _grid_of(start, end)
    subjects = find_subjects("replica", model=model)
    places = _Places(subjects)
    means, highs, counts = _fold(kind, subjects, grid, places)
    told = [row for row in range(len(places.names)) if counts[row].any()]
    told.sort(key=lambda row: -_mean_of(means[row], counts[row]))
    shown = sorted(told[:MOST_ROWS], key=lambda row: places.order_of(row))
    newest = _newest(counts, grid)
    return RatioMap(
        kind=kind,
        start=datetime.fromtimestamp(grid.start_s, UTC),
        column_s=grid.column_s,
        columns=grid.columns,
        rows=tuple(_row(places.subjects[row], means[row], highs[row], counts[row]) for row in shown),
        left_out=len(told) - len(shown),
        newest=age_of(newest, now=now, stale_after=timedelta(seconds=max(10, 2 * grid.column_s))),
    )


def _grid_of(start: datetime, end: datetime) -> _Grid:
    length = end - start
    resolution_s = next((seconds for edge, seconds in _RESOLUTIONS if length <= edge), 300)
    whole_s = max(1, length.total_seconds())
    column_s = resolution_s * max(1, -(-int(whole_s) // (resolution_s * MOST_COLUMNS)))
    # From the end on, with what is still open: where not all fits, the oldest is left out.
    end_s = math.ceil(end.timestamp() / column_s) * column_s
    columns = math.ceil((end_s - start.timestamp()) / column_s)
    columns = min(MOST_COLUMNS, max(1, columns))
    return _Grid(end_s - columns * column_s, column_s, columns, resolution_s)


class _Places:
    """Rows by replica: one that changed its lane or release is one row, under its newest subject."""

    def __init__(self, subjects: Mapping[int, Subject]) -> None:
        self.subjects: list[Subject] = []
        self.names: dict[str, int] = {}
        self.rows: dict[int, int] = {}
        for number in sorted(subjects):
            subject = subjects[number]
            row = self.names.setdefault(subject.name, len(self.subjects))
            if row == len(self.subjects):
                self.subjects.append(subject)
            self.subjects[row] = subject
            self.rows[number] = row

    def order_of(self, row: int) -> tuple[str, int, str, str]:
        subject = self.subjects[row]
        return subject.model, subject.release, subject.lane, subject.name


def _fold(
    kind: RatioKind, subjects: Mapping[int, Subject], grid: _Grid, places: _Places
) -> tuple[Any, Any, Any]:
    """Means, highs and numbers of samples, each rows × columns."""
    first, last = _SPANS[kind]
    index, width = REPLICA_GAUGES.index(first), REPLICA_GAUGES.index(last) - REPLICA_GAUGES.index(first) + 1
    cells = list_gauge_slices(
        subjects,
        datetime.fromtimestamp(grid.start_s, UTC),
        datetime.fromtimestamp(grid.end_s, UTC),
        grid.resolution_s,
        first=index,
        count=width,
    )
    shape = (len(places.subjects), grid.columns)
    if not cells:
        return np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    gauges = np.frombuffer(
        b"".join(cell[2].ljust(width * GAUGE_BYTES, _ABSENT) for cell in cells), dtype=_GAUGE
    ).reshape(-1, width)
    columns = (np.array([cell[1] for cell in cells], dtype=np.int64) - grid.start_s) // grid.column_s
    rows = np.array([places.rows[cell[0]] for cell in cells], dtype=np.int64)
    tops, bottoms, highs, samples = _parts_of(
        kind, {name: gauges[:, place] for place, name in _named(first, width)}
    )
    flat = rows * grid.columns + columns
    size = shape[0] * shape[1]
    top, bottom = (np.bincount(flat, weights=part, minlength=size) for part in (tops, bottoms))
    counts = np.bincount(flat, weights=samples, minlength=size).astype(np.int64)
    peak = np.zeros(size)
    np.maximum.at(peak, flat, np.where(samples > 0, highs, 0.0))
    means = np.divide(top, bottom, out=np.zeros(size), where=bottom > 0)
    return means.reshape(shape), peak.reshape(shape), counts.reshape(shape)


def _named(first: str, width: int) -> list[tuple[int, str]]:
    index = REPLICA_GAUGES.index(first)
    return list(enumerate(REPLICA_GAUGES[index : index + width]))


def _parts_of(kind: RatioKind, gauges: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """What is divided by what, the highest share within the cell, and how many samples it is of; 0: none."""
    if kind is RatioKind.KV_USE:
        return _use_parts(gauges["kv_used_blocks"], gauges["kv_blocks"])
    told = gauges["kv_tail_ratio" if kind is RatioKind.KV_TAIL else "allocator_ratio"]
    return told["total"], told["count"], told["high"], told["count"]


def _use_parts(used: Any, blocks: Any) -> tuple[Any, Any, Any, Any]:
    """Use is told at each step, the size of the cache at each look: it is the same all along."""
    size = np.divide(blocks["total"], blocks["count"], out=np.zeros(len(blocks)), where=blocks["count"] > 0)
    counts = np.where(size > 0, used["count"], 0)
    peak = np.divide(used["high"], size, out=np.zeros(len(size)), where=size > 0)
    return np.where(size > 0, used["total"], 0.0), size * counts, np.minimum(peak, 1.0), counts


def _mean_of(means: Any, counts: Any) -> float:
    return float(np.average(means, weights=counts))


def _newest(counts: Any, grid: _Grid) -> datetime | None:
    told = np.flatnonzero(counts.any(axis=0)).tolist()
    return datetime.fromtimestamp(grid.start_s + (told[-1] + 1) * grid.column_s, UTC) if told else None


def _row(subject: Subject, means: Any, highs: Any, counts: Any) -> RatioRow:
    return RatioRow(
        replica=subject.name,
        model=subject.model,
        release=subject.release,
        lane=subject.lane,
        node=subject.node,
        means=_told(means, counts),
        highs=_told(highs, counts),
        samples=tuple(int(count) for count in counts),
    )


def _told(values: Any, counts: Any) -> tuple[float | None, ...]:
    rounded: Sequence[float] = np.round(values, 4).tolist()
    return tuple(value if count else None for value, count in zip(rounded, counts.tolist(), strict=True))


_SPANS: Final = {
    RatioKind.KV_USE: ("kv_blocks", "kv_used_blocks"),
    RatioKind.KV_TAIL: ("kv_tail_ratio", "kv_tail_ratio"),
    RatioKind.ALLOCATOR: ("allocator_ratio", "allocator_ratio"),
}
"""The first and the last of the gauges that a kind needs: they are read as one piece."""
