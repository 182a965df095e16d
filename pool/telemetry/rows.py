"""Cells, gauges and records as rows of their tables, and back. No database here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import orjson
from psycopg.types.json import Jsonb

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
from pool.models import RESOLUTIONS, GaugeSubject, Series

Row = tuple[Any, ...]


class Summable(Protocol):
    def add(self, other: Self) -> None: ...


class Named(Hashable, Protocol):
    """A key of cells: its fields are those of a table."""

    @property
    def model(self) -> str: ...


K = TypeVar("K", bound=Named)
C = TypeVar("C", bound=Summable)


@dataclass(frozen=True)
class Kind(Generic[K, C]):
    """What is kept of one kind of cell: whose it is (K), what it counts (C), and in which tables."""

    name: str
    key_type: type[K]
    keys: type[Any]
    """The model whose ids stand for K, with K's fields."""
    id_column: str
    tables: Mapping[int, type[Any]]
    """Seconds that a cell covers → table."""
    columns: tuple[str, ...]
    """After id and time."""
    make: Callable[[], C]
    pack: Callable[[K, C], Row]
    unpack: Callable[[K, Sequence[Any]], C]

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cast(Any, self.key_type)))


def dump_json(value: Any) -> Jsonb:
    """PostgreSQL refuses the character NUL within JSON."""
    return Jsonb(value, dumps=_dump)


@lru_cache(maxsize=4096)
def datetime_of(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, tz=UTC)


def _dump(value: Any) -> bytes:
    return orjson.dumps(value).replace(b"\\u0000", b"")


def _pack_cell(_: SeriesKey, cell: Cell) -> Row:
    counts, sums, stages = cell.counts, cell.sums, cell.stages
    return (
        *[counts.get(name, 0) for name in COUNTS],
        *[sums.get(name, 0.0) for name in SUMS],
        dump_json(cell.outcomes),
        *[stages[name].to_bytes() if name in stages else b"" for name in STAGES],
    )


def _unpack_cell(_: SeriesKey, values: Sequence[Any]) -> Cell:
    numbers, outcomes = len(COUNTS) + len(SUMS), values[len(COUNTS) + len(SUMS)]
    return Cell(
        counts={name: count for name, count in zip(COUNTS, values, strict=False) if count},
        sums={name: s for name, s in zip(SUMS, values[len(COUNTS) : numbers], strict=True) if s},
        outcomes=dict(orjson.loads(outcomes) if isinstance(outcomes, str) else outcomes),
        stages=_read_histograms(STAGES, values[numbers + 1 :]),
    )


def _pack_gauges(subject: Subject, cell: GaugeCell) -> Row:
    steps = cell.steps
    return (
        pack_gauges(cell.gauges, GAUGES[subject.kind]),
        pack_counters(cell.counters, COUNTERS[subject.kind]),
        *[steps[name].to_bytes() if name in steps else b"" for name in STEPS],
    )


def _unpack_gauges(subject: Subject, values: Sequence[Any]) -> GaugeCell:
    return GaugeCell(
        gauges=unpack_gauges(bytes(values[0]), GAUGES[subject.kind]),
        counters=unpack_counters(bytes(values[1]), COUNTERS[subject.kind]),
        steps=_read_histograms(STEPS, values[2:]),
    )


def _read_histograms(names: Sequence[str], contents: Sequence[Any]) -> dict[str, Histogram]:
    return {
        name: Histogram.from_bytes(bytes(content))
        for name, content in zip(names, contents, strict=True)
        if content
    }


CELLS: Kind[SeriesKey, Cell] = Kind(
    "cells",
    SeriesKey,
    Series,
    "series_id",
    {period_s: tables[0] for period_s, tables in RESOLUTIONS.items()},
    (*COUNTS, *SUMS, "outcomes", *STAGES),
    Cell,
    _pack_cell,
    _unpack_cell,
)
GAUGE_CELLS: Kind[Subject, GaugeCell] = Kind(
    "gauges",
    Subject,
    GaugeSubject,
    "subject_id",
    {period_s: tables[1] for period_s, tables in RESOLUTIONS.items()},
    ("gauges", "counters", *STEPS),
    GaugeCell,
    _pack_gauges,
    _unpack_gauges,
)
