"""What one running engine did since the last look: its step ring, its load and its processes, folded into a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pool.domain.gauges import Gauge, GaugeCell
from pool.domain.histogram import Histogram
from pool.ports import EngineLoad, EngineSpec
from workers.block_figures import BlockFigures, count_blocks
from workers.engine_ring import RingReader
from workers.plugin.sluice_engine.ring import FILE_NAME
from workers.replica_totals import ReplicaTotals
from workers.ring_records import Allocator, FinishedRequest, Step
from workers.session_memory import SessionMemory

LEAST_RESERVED_BYTES: Final = 2**30
"""Under so much reserved memory the allocator's ratio says nothing and is absent."""
MAP_EVERY_S: Final = 1.0
"""A map is three bytes for each block, to be read and counted."""
LOAD_COUNTERS: Final = {
    "prefix_queries_tokens": "cache_queries_tokens",
    "prefix_hits_tokens": "cache_hits_tokens",
    "generation_tokens": "generation_tokens",
    "prompt_tokens": "prompt_tokens",
}
"""Name in the sample → name in EngineLoad."""


@dataclass(frozen=True, slots=True)
class WatchedEngine:
    """One running engine of this node. `members`: its processes as the keeper listed them last."""

    spec: EngineSpec
    release: int
    lane: str
    members: tuple[int, ...]

    @property
    def key(self) -> tuple[str, int]:
        return (self.spec.replica_id, self.spec.generation)


@dataclass
class ReplicaTrace:
    """One per generation. Not for several threads, but for `note_load`, which only keeps the newest value."""

    engine: WatchedEngine
    totals: ReplicaTotals
    clock: Callable[[], float] = time.monotonic
    reader: RingReader = field(init=False)
    memory: SessionMemory = field(default_factory=SessionMemory)
    newest: Step | None = None
    blocks: BlockFigures | None = None
    allocator: Allocator | None = None
    missing: str = ""
    _load: EngineLoad | None = None
    _counted_load: EngineLoad | None = None
    _mapped_at: float = -1e9

    def __post_init__(self) -> None:
        self.reader = RingReader(f"{self.engine.spec.directory}/{FILE_NAME}", clock=self.clock)

    def note_load(self, load: EngineLoad) -> None:
        """The engine's own `/metrics`, as its watcher read them."""
        self._load = load

    def look(self, *, with_memory: bool) -> tuple[GaugeCell, list[FinishedRequest]]:
        """What came since the last look. `with_memory`: also read the sizes of its processes."""
        cell = GaugeCell()
        self.missing = self.reader.missing
        steps, finished = self.reader.read_steps(), self.reader.read_finished()
        self._read_map()
        # With what runs and waits now, also after requests that left between two steps.
        self.newest = self.reader.read_newest_step() or self.newest
        self._note_steps(cell, steps)
        waits = [one.queue_s for one in finished if one.queue_s is not None]
        times = sort_times(steps)
        if waits:
            times["scheduler_queue"] = waits
        cell.steps = {name: Histogram.of(values) for name, values in times.items()}
        self._note_blocks(cell)
        self._note_allocator(cell)
        self._note_load(cell)
        if with_memory:
            self.memory.read(self.engine.members)
        if self.memory.rss_bytes is not None:
            cell.note("rss_bytes", self.memory.rss_bytes)
        if (faults := self.memory.take_major_faults()) is not None:
            cell.count("major_faults", faults)
        self.totals.add(cell, times, lost_steps=self.reader.lost_steps)
        self.totals.missing, self.totals.looked_at = self.missing, self.clock()
        return cell, finished

    def close(self) -> None:
        self.reader.close()

    @property
    def has_ring(self) -> bool:
        return self.newest is not None and not self.missing

    def live_load(self) -> EngineLoad | None:
        """What the newest look at the ring says now; None without one. What only `/metrics` tells is as it was last."""
        if self.newest is None or self.missing:
            return None
        blocks, load = self.kv_blocks, self._load
        return EngineLoad(
            running=self.newest.running,
            waiting=self.newest.waiting,
            kv_usage_ratio=self.newest.used_blocks / blocks if blocks else None,
            generation_tokens=None,
            prompt_tokens=None,
            finished_requests=None,
            cache_queries_tokens=load.cache_queries_tokens if load else None,
            cache_hits_tokens=load.cache_hits_tokens if load else None,
        )

    @property
    def state_age_s(self) -> float:
        """Since what `live_load` says was so: none between steps; in a step it is as at the step's start."""
        return self.reader.in_step_s() or 0.0

    @property
    def kv_blocks(self) -> int | None:
        """Without the null block, which holds nothing."""
        head = self.reader.head
        return head.blocks - 1 if head is not None and head.blocks > 1 else None

    @property
    def simulated(self) -> bool:
        head = self.reader.head
        return head is not None and head.simulated

    def _read_map(self) -> None:
        now = self.clock()
        if now - self._mapped_at < MAP_EVERY_S:
            return
        self._mapped_at = now
        found = self.reader.read_block_map()
        if found is not None and (self.blocks is None or found.at_s != self.blocks.at_s):
            self.blocks = count_blocks(found)
        self.allocator = self.reader.read_allocator()

    def _note_steps(self, cell: GaugeCell, steps: Sequence[Step]) -> None:
        # An idle engine makes no steps: its state is told all the same, and the age of its newest step.
        if told := steps or ([self.newest] if self.newest else []):
            cell.gauges["running"] = gauge_of([step.running for step in told])
            cell.gauges["waiting"] = gauge_of([step.waiting for step in told])
            cell.gauges["kv_used_blocks"] = gauge_of([step.used_blocks for step in told])
        if steps:
            batches = [step.prefill_sequences + step.decode_sequences for step in steps]
            cell.gauges["batch_sequences"] = gauge_of(batches)
            cell.counters.update(count_steps(steps))
        if self.newest is not None:
            cell.note("age_s", max(0.0, self.clock() - self.newest.at_s))

    def _note_blocks(self, cell: GaugeCell) -> None:
        if (blocks := self.kv_blocks) is not None:
            cell.note("kv_blocks", blocks)
        head = self.reader.head
        if head is not None and head.kv_bytes is not None:
            cell.note("kv_bytes", head.kv_bytes)
        if self.blocks is not None:
            self.blocks.note(cell)

    def _note_allocator(self, cell: GaugeCell) -> None:
        found = self.allocator
        if found is None:
            return
        cell.note("allocated_bytes", found.allocated_bytes)
        cell.note("reserved_bytes", found.reserved_bytes)
        cell.note("inactive_split_bytes", found.inactive_split_bytes)
        if found.reserved_bytes >= LEAST_RESERVED_BYTES and found.ratio is not None:
            cell.note("allocator_ratio", found.ratio)

    def _note_load(self, cell: GaugeCell) -> None:
        """Counters grow from the first reading on; a counter that fell began anew."""
        load, before = self._load, self._counted_load
        if load is None or load is before:
            return
        self._counted_load = load
        for name, source in LOAD_COUNTERS.items():
            value = getattr(load, source)
            earlier = getattr(before, source) if before is not None else None
            if value is not None and earlier is not None:
                cell.count(name, value - earlier if value >= earlier else value)
        if self.newest is None:
            # Without a ring the engine's gauges are all there is.
            for name, gauge in (("running", load.running), ("waiting", load.waiting)):
                if gauge is not None:
                    cell.note(name, gauge)


def gauge_of(values: Sequence[float]) -> Gauge:
    """`values` is not empty."""
    return Gauge(min(values), sum(values), max(values), len(values))


def sort_times(steps: Iterable[Step]) -> dict[str, list[float]]:
    """By what the step computed, in seconds. Of overlapping steps each second counts once."""
    found: dict[str, list[float]] = {}
    for step in steps:
        found.setdefault(step.kind, []).append(step.busy_s)
    return found


def count_steps(steps: Sequence[Step]) -> dict[str, float]:
    return {
        "steps": len(steps),
        "prefill_tokens": sum(step.prefill_tokens for step in steps),
        "decode_tokens": sum(step.decode_tokens for step in steps),
        "cached_tokens": sum(step.cached_tokens for step in steps),
        "preemptions": sum(step.preempted for step in steps),
        "schedule_s": sum(step.schedule_s for step in steps),
        "execute_s": sum(step.execute_s for step in steps),
        "update_s": sum(step.update_s for step in steps),
    }


def dump_cell(cell: GaugeCell) -> dict[str, Any]:
    """As `pool/telemetry` reads it: [low, total, high, count]; increases; [sum in seconds, {bucket: count}]."""
    return {
        "gauges": {name: [one.low, one.total, one.high, one.count] for name, one in cell.gauges.items()},
        "counters": cell.counters,
        "steps": {name: [one.sum_s, one.counts] for name, one in cell.steps.items()},
    }
