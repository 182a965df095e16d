"""What telemetry knows and has not stored yet: open cells, records, joins, and how far it read. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.telemetry.facts import Fact, Names, read_fact
from pool.telemetry.joining import Joined, Joiner, Waiting
from pool.telemetry.open_cells import AHEAD_S, OpenCells
from pool.telemetry.partitions import KEEP_RECORDS
from pool.telemetry.publishing import write_messages
from pool.telemetry.rows import CELLS, GAUGE_CELLS
from pool.telemetry.samples import EngineTimes, read_engine_times, read_sample
from pool.telemetry.store import ENGINE_COLUMNS, Batch
from pool.telemetry.streams import order_of

_FAULTS = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
MOST_RECORDS = 20_000
"""Not stored yet: from there on the streams wait in Redis."""


@dataclass
class Reading:
    """How far a stream was read. Ids of its entries."""

    stored: str = "0"
    read: str = "0"
    dropped: int = 0
    """Since it was last stored."""
    entries: int = 0
    """Since the process started."""
    unreadable: int = 0
    """The same."""


@dataclass
class Memory:
    cells: OpenCells[SeriesKey, Cell]
    gauges: OpenCells[Subject, GaugeCell]
    facts: Reading = field(default_factory=Reading)
    samples: Reading = field(default_factory=Reading)
    joiner: Joiner = field(default_factory=Joiner)
    names: Names = field(default_factory=Names)
    closed: dict[int, int] = field(default_factory=dict)
    """Resolution → time before which coarse cells are known as complete in the tables."""
    fact_count: int = 0
    sample_count: int = 0
    facts_out_of_time: int = 0
    """Older than records are kept, or of a clock that is wrong."""
    _records: dict[tuple[str, datetime], Fact] = field(default_factory=dict)
    _joins: list[Joined] = field(default_factory=list)
    _staged: dict[tuple[Subject, int], GaugeCell] = field(default_factory=dict)

    @classmethod
    def empty(cls, now_s: float) -> Memory:
        return cls(OpenCells(CELLS, now_s=now_s), OpenCells(GAUGE_CELLS, now_s=now_s))

    @property
    def is_full(self) -> bool:
        return len(self._records) >= MOST_RECORDS

    def fold_facts(self, entry_id: str, body: bytes | None, *, now_s: float) -> None:
        self.facts.read, self.facts.entries = entry_id, self.facts.entries + 1
        facts = _parse(body)
        if not isinstance(facts, list):
            self._drop(self.facts)
            return
        for raw in facts:
            try:
                fact = read_fact(raw, self.names)
            except _FAULTS:
                self._drop(self.facts)
                continue
            self._take_fact(fact, now_s=now_s)

    def fold_sample(self, entry_id: str, body: bytes | None, *, now_s: float) -> None:
        self.samples.read, self.samples.entries = entry_id, self.samples.entries + 1
        sample = _parse(body)
        if not isinstance(sample, dict):
            self._drop(self.samples)
            return
        received_s, staged = order_of(entry_id)[0] / 1000, self._staged
        try:
            for subject, at_s, cell in read_sample(sample, received_s, self._drop_sample):
                found = staged.get((subject, at_s))
                if found is None:
                    staged[subject, at_s] = cell
                else:
                    found.add(cell)
                self.sample_count += 1
            self.fold_times(read_engine_times(sample, self._drop_sample), now_s=now_s)
        except _FAULTS:
            self._drop(self.samples)

    def fold_recent(self, body: bytes | None, *, now_s: float) -> None:
        """A sample whose gauges are stored: only the engine's times that may still wait for their fact."""
        sample = _parse(body)
        if isinstance(sample, dict):
            self.fold_times(read_engine_times(sample, lambda: None), now_s=now_s)

    def fold_times(self, all_times: Iterator[EngineTimes], *, now_s: float) -> None:
        for times in all_times:
            joined = self.joiner.add_times(times, now_s=now_s)
            if joined is not None:
                self._take_joined(joined, now_s=now_s)

    def settle(self, *, now_s: float) -> None:
        """Adds the gauges that were read since to their cells."""
        for (subject, at_s), cell in self._staged.items():
            self.gauges.settle(subject, at_s, cell, now_s=now_s)
        self._staged = {}
        self.joiner.expire(now_s=now_s)

    def write_messages(self, epoch: str, seq: int) -> Iterator[bytes]:
        """What changed since this was last asked, for web processes."""
        return write_messages(epoch, seq, self.cells.take_touched(), self.gauges.take_touched())

    def forget_touched(self) -> None:
        """When nobody listens."""
        self.cells.touched, self.gauges.touched = set(), set()

    def take_batch(self, prefix: str, *, now_s: float) -> Batch | None:
        """What is to be stored now; None when nothing changed. `prefix`: of the streams' names."""
        self.settle(now_s=now_s)
        batch = Batch(
            positions={
                f"{prefix}:{name}": (reading.stored, reading.read)
                for name, reading in (("facts", self.facts), ("samples", self.samples))
            },
            dropped={f"{prefix}:facts": self.facts.dropped, f"{prefix}:samples": self.samples.dropped},
            cells=self.cells.take(now_s=now_s),
            gauges=self.gauges.take(now_s=now_s),
            records=[fact.row for fact in self._records.values()],
            joins=[_join_row(joined) for joined in self._joins],
        )
        batch.closed = {
            f"{prefix}:closed:{s}": at_s
            for s, at_s in batch.cells.closed.items()
            if at_s != self.closed.get(s)
        }
        self._records, self._joins = {}, []
        self.facts.dropped = self.samples.dropped = 0
        return batch if self._changes(batch) else None

    def note_stored(self, batch: Batch) -> None:
        """After the batch that was taken last is committed."""
        self.facts.stored, self.samples.stored = (after for _, after in batch.positions.values())
        self.closed = dict(batch.cells.closed)

    def _changes(self, batch: Batch) -> bool:
        moved = any(before != after for before, after in batch.positions.values())
        written = any(batch.cells.whole.values()) or any(batch.gauges.whole.values())
        return moved or written or bool(batch.closed)

    def _take_fact(self, fact: Fact, *, now_s: float) -> None:
        if not now_s - KEEP_RECORDS.total_seconds() <= fact.at.timestamp() <= now_s + AHEAD_S:
            self.facts_out_of_time += 1
            return
        self.fact_count += 1
        self._records[fact.request_id, fact.at] = fact
        own, *others = fact.series
        for key in others:
            copy = Cell()
            copy.add(fact.cell)
            self.cells.settle(key, fact.end_s, copy, now_s=now_s)
        self.cells.settle(own, fact.end_s, fact.cell, now_s=now_s)
        if not fact.replica:
            return
        attempts = fact.values["attempts"]
        waiting = Waiting(fact.request_id, fact.at, fact.end_s, fact.replica, fact.e2e_s, own, attempts)
        joined = self.joiner.add_fact(waiting, now_s=now_s)
        if joined is not None:
            self._take_joined(joined, now_s=now_s)

    def _take_joined(self, joined: Joined, *, now_s: float) -> None:
        fact, times = joined.fact, joined.times
        self.cells.settle(fact.series, fact.end_s, joined.cell, now_s=now_s)
        record = self._records.get((fact.request_id, fact.at))
        if record is None:
            self._joins.append(joined)
        else:
            values = (times.queue_s, times.prefill_s, times.decode_s, times.preemptions)
            record.values.update(zip(ENGINE_COLUMNS, values, strict=True))

    def _drop_sample(self) -> None:
        self._drop(self.samples)

    def _drop(self, reading: Reading) -> None:
        reading.dropped += 1
        reading.unreadable += 1


def _join_row(joined: Joined) -> tuple[Any, ...]:
    fact, times = joined.fact, joined.times
    return fact.request_id, fact.at, times.queue_s, times.prefill_s, times.decode_s, times.preemptions


def _parse(body: bytes | None) -> list[Any] | Mapping[str, Any] | None:
    if body is None:
        return None
    try:
        return orjson.loads(body)  # type: ignore[no-any-return]
    except orjson.JSONDecodeError:
        return None
