"""A day of one model in the telemetry tables, and what is measured on it. Needs Django and a migrated database."""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
from django.db import connection, transaction

from bench._figures import say
from pool.domain.cells import Cell, SeriesKey
from pool.domain.heatmap import Columns
from pool.domain.histogram import GAMMA, LAST_BUCKET, LOWEST_S, Histogram
from pool.models import RequestRecord
from pool.queries.cells import CellFilter, find_series, list_stage
from pool.queries.latency import load_heatmap
from pool.telemetry.copying import put, target_of
from pool.telemetry.partitions import drop_partition, ensure_partition, list_partitions, make_ahead
from pool.telemetry.rows import CELLS
from pool.telemetry.store import Ids

MODEL = "bench"
DAY = timedelta(days=1)
STEP_S = 300
STEPS = 86_400 // STEP_S
SERIES = [
    SeriesKey(
        MODEL, release=1 + number % 2, replica=f"r{number // 6}", lane=("short", "mid", "long")[number % 3]
    )
    for number in range(100)
]
PIECE = 250_000
QUANTILES = (0.5, 0.95, 0.99)
TRIES = 7
WRITE_EVERY_S, QUIET_S = 0.005, 3.0
_EDGES = np.array([LOWEST_S * GAMMA**bucket for bucket in range(LAST_BUCKET)])
"""The upper ones: a bucket holds what is above the last one's and up to its own."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Dropped:
    drop_ms: float
    stall_ms: float
    """The longest that one write of a concurrent writer took meanwhile."""
    usual_stall_ms: float
    """The same before."""


def start_of_day() -> datetime:
    """The last whole day."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - DAY


def make(records: int) -> Values:
    """Records by the database itself, cells from as many values of ours. Returns the values, in seconds."""
    start = start_of_day()
    make_ahead(datetime.now(UTC))
    _make_records(records, start)
    per_cell = max(1, records // (len(SERIES) * STEPS))
    draw, parts = np.random.default_rng(7), []
    ids = Ids[SeriesKey](CELLS).resolve(SERIES)
    ensure_partition("pool_fiveminutecell", start)
    keys = (CELLS.id_column, "at")
    table: Any = CELLS.tables[STEP_S]
    target = target_of(table, (*keys, *CELLS.columns), keys)
    for key in SERIES:
        # Replicas differ, and one of the lanes has a long tail.
        centre = {"short": -1.6, "mid": -0.6, "long": 0.8}[key.lane]
        values = draw.lognormal(centre, 0.7, size=(STEPS, per_cell))
        values[draw.random(values.shape) < 0.01] *= 20
        parts.append(values.ravel())
        with transaction.atomic():
            put(target, _cell_rows(key, ids[key], values, start), replace=False)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pool_fiveminutecell")
    return np.concatenate(parts)


def count_records() -> int:
    return RequestRecord.objects.count()


def time_page_query() -> float:
    """Median of the latency page's query over 24 hours, in milliseconds; the first fills the caches."""
    start = start_of_day()
    columns = Columns(start, STEP_S, STEP_S, STEPS)
    took = []
    for number in range(TRIES + 1):
        started_s = time.perf_counter()
        found = load_heatmap(CellFilter(model=MODEL), "ttft", columns, now=start + DAY)
        if number:
            took.append((time.perf_counter() - started_s) * 1000)
    assert found.total.samples > 0
    return round(statistics.median(took), 1)


def compare_quantiles(values: Values) -> tuple[float, int]:
    """(largest relative error of the merged cells, how many samples they miss), over orders and shapes of merging."""
    start = start_of_day()
    stored = [
        Histogram.from_bytes(bytes(content))
        for _, _, content in list_stage(
            find_series(CellFilter(model=MODEL)), "ttft", start=start, end=start + DAY, resolution_s=STEP_S
        )
    ]
    ordered = np.sort(values)
    exact = {share: float(ordered[max(0, int(np.ceil(share * len(ordered))) - 1)]) for share in QUANTILES}
    worst, missing = 0.0, 0
    shuffle = random.Random(1)
    for number in range(3):
        shuffle.shuffle(stored)
        merged = _merge_in_turn(stored) if number < 2 else _merge_as_tree(stored)
        missing = max(missing, abs(merged.count - len(ordered)))
        for share, value in exact.items():
            found = merged.quantile(share)
            worst = max(worst, 1.0 if found is None else abs(found - value) / value)
    return round(worst, 5), missing


def drop_while_writing() -> Dropped:
    """Drops the day's records while another connection writes a record every 5 ms. A day that is due was written to
    disk two weeks ago: nothing of this one waits in memory either."""
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")
    os.sync()
    start = start_of_day()
    (name,) = [name for name, at, _ in list_partitions("pool_requestrecord") if at == start]
    writer = _Writer()
    writer.start()
    time.sleep(QUIET_S)
    usual_ms, writer.longest_ms = writer.longest_ms, 0.0
    started_s = time.perf_counter()
    done = drop_partition("pool_requestrecord", name, is_attached=True)
    drop_ms = (time.perf_counter() - started_s) * 1000
    time.sleep(0.2)
    stall_ms = writer.end()
    if not done or RequestRecord.objects.filter(at__lt=start + DAY).exists():
        raise AssertionError("the day is still there")
    return Dropped(round(drop_ms, 1), round(stall_ms, 1), round(usual_ms, 1))


class _Writer(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_ms = 0.0
        self._ending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ending.wait(WRITE_EVERY_S):
            number += 1
            started_s = time.perf_counter()
            RequestRecord.objects.create(request_id=f"w{number}", at=datetime.now(UTC), model=MODEL)
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - started_s) * 1000)
        connection.close()

    def end(self) -> float:
        self._ending.set()
        self.join(10)
        return self.longest_ms


def _make_records(records: int, start: datetime) -> None:
    ensure_partition("pool_requestrecord", start)
    sql = """
        INSERT INTO pool_requestrecord (request_id, at, tag, model, lane, wished_release, release, replica, node, key,
          tier, label, region, status, outcome, attempts, tries, waits, spilled, stream, tokenize_s, queue_s,
          first_byte_s, decode_s, stream_s, ttft_s, e2e_s, longest_gap_s, engine_queue_s, engine_prefill_s,
          engine_decode_s, preemptions, late_gaps, chunks, bytes_out, prompt_tokens, cached_tokens, output_tokens,
          estimated, truncated_tokens, retransmits, finish_reason, flags)
        SELECT 'q' || n, %s + n * %s * interval '1 microsecond', '', %s, (ARRAY['short', 'mid', 'long'])[1 + n %% 3],
          1, 1 + n %% 2, 'r' || n %% 17, 'n' || n %% 4, 'k' || n %% 50, 'standard', '', 'eu', 200, 'ok', 1,
          '[]', '[]', false, true, 0.001, 0.01, 0.1, 1.0, 0.0, 0.2 + (n %% 100) / 100.0, 1.5, 0.05, 0.01, 0.1, 0.9, 0,
          0, 64, 9000, 300, 100, 64, false, 0, 0, 'stop', '[]'
        FROM generate_series(%s::bigint, %s::bigint) AS n"""
    microseconds = 86_400_000_000 // records
    with connection.cursor() as cursor:
        for first in range(0, records, PIECE):
            last = min(records, first + PIECE) - 1
            cursor.execute(sql, [start, microseconds, MODEL, first, last])
            say(f"{last + 1:,} records")


def _cell_rows(key: SeriesKey, number: int, values: Values, start: datetime) -> Iterator[tuple[object, ...]]:
    buckets = np.searchsorted(_EDGES, values, side="left")
    for step in range(STEPS):
        counts = np.bincount(buckets[step])
        histogram = Histogram(
            {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}, float(values[step].sum())
        )
        cell = Cell(
            counts={"requests": values.shape[1]},
            outcomes={"ok": values.shape[1]},
            stages=dict.fromkeys(("queue", "ttft", "e2e"), histogram),
        )
        yield number, start + timedelta(seconds=step * STEP_S), *CELLS.pack(key, cell)


def _merge_in_turn(histograms: list[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        total.absorb(histogram)
    return total


def _merge_as_tree(histograms: list[Histogram]) -> Histogram:
    while len(histograms) > 1:
        pairs = [histograms[n : n + 2] for n in range(0, len(histograms), 2)]
        histograms = [pair[0].merge(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return histograms[0]
