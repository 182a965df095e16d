"""Open cells as the message that web processes get: whole seconds, so a lost message harms nothing. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.domain.histogram import Histogram

MOST_CELLS: Final = 2000
"""In one message; what is beyond goes into the next one."""

Message = dict[str, Any]


def write_messages(
    epoch: str,
    seq: int,
    cells: Iterable[tuple[SeriesKey, int, Cell]],
    gauges: Iterable[tuple[Subject, int, GaugeCell]],
) -> Iterator[bytes]:
    """Numbered from `seq` on. `epoch`: the telemetry process's start."""
    written_cells = [_write_cell(key, at_s, cell) for key, at_s, cell in cells]
    written_gauges = [_write_gauges(subject, at_s, cell) for subject, at_s, cell in gauges]
    longest = max(len(written_cells), len(written_gauges))
    for number, start in enumerate(range(0, longest, MOST_CELLS)):
        part = slice(start, start + MOST_CELLS)
        yield orjson.dumps(
            {
                "epoch": epoch,
                "seq": seq + number,
                "cells": written_cells[part],
                "gauges": written_gauges[part],
            }
        )


def _write_cell(key: SeriesKey, at_s: int, cell: Cell) -> list[Any]:
    name = [
        key.model, key.release, key.replica, key.lane, key.tier, key.label, key.long_prompt, key.region,
    ]  # fmt: skip
    return [
        at_s,
        name,
        {
            "counts": cell.counts,
            "sums": cell.sums,
            "outcomes": cell.outcomes,
            "stages": {stage: _write_histogram(histogram) for stage, histogram in cell.stages.items()},
        },
    ]


def _write_gauges(subject: Subject, at_s: int, cell: GaugeCell) -> list[Any]:
    return [
        at_s,
        [subject.kind, subject.name, subject.node, subject.model, subject.release, subject.lane],
        {
            "gauges": {name: [one.low, one.total, one.high, one.count] for name, one in cell.gauges.items()},
            "counters": cell.counters,
            "steps": {step: _write_histogram(histogram) for step, histogram in cell.steps.items()},
        },
    ]


def _write_histogram(histogram: Histogram) -> list[Any]:
    return [histogram.sum_s, list(histogram.counts.items())]
