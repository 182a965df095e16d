"""Gauges and counters of replicas, devices and processes over a stretch of time, and their compact form.

Names are only ever added at the end: rows of before stay readable.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pool.domain.histogram import Histogram

REPLICA_GAUGES: Final = (
    "running", "waiting", "kv_blocks", "kv_used_blocks", "kv_shared_blocks", "kv_reusable_blocks", "kv_free_blocks",
    "kv_held_tokens", "kv_tail_tokens", "kv_tail_ratio", "largest_free_run_blocks", "batch_sequences",
    "weights_bytes", "kv_bytes", "allocated_bytes", "reserved_bytes", "inactive_split_bytes", "allocator_ratio",
    "rss_bytes", "age_s",
)  # fmt: skip
"""`kv_*_blocks`: used + reusable + free = all but the null block; shared ones are part of used. `kv_held_tokens`: what
the used blocks fit. `age_s`: of the newest step when it was read."""
REPLICA_COUNTERS: Final = (
    "steps", "prefill_tokens", "decode_tokens", "cached_tokens", "preemptions", "schedule_s", "execute_s", "update_s",
    "prefix_queries_tokens", "prefix_hits_tokens", "major_faults", "generation_tokens", "prompt_tokens",
)  # fmt: skip
DEVICE_GAUGES: Final = (
    "utilization_ratio", "memory_total_bytes", "memory_used_bytes", "memory_ours_bytes", "memory_foreign_bytes",
    "memory_free_bytes", "memory_activity_ratio", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "sm_clock_hz",
    "memory_clock_hz", "temperature_c", "power_w", "throttled", "bandwidth_ratio",
)  # fmt: skip
"""`memory_activity_ratio`: NVML's "memory utilisation", part of the time in which memory was read or written, not
bandwidth. `bandwidth_ratio`: only where GPM or DCGM gives it."""
DEVICE_COUNTERS: Final = ()
PROCESS_GAUGES: Final = ("rss_bytes", "cpu_ratio")
PROCESS_COUNTERS: Final = ("facts", "facts_dropped", "samples", "samples_dropped")
STEPS: Final = ("prefill", "decode", "mixed", "scheduler_queue")
"""Histograms of a replica: time of a step by what it computed, and how long requests waited inside the engine."""
GAUGES: Final[Mapping[str, tuple[str, ...]]] = {
    "replica": REPLICA_GAUGES, "device": DEVICE_GAUGES, "process": PROCESS_GAUGES,
}  # fmt: skip
COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "replica": REPLICA_COUNTERS, "device": DEVICE_COUNTERS, "process": PROCESS_COUNTERS,
}  # fmt: skip

_GAUGE = struct.Struct("<dddI")
GAUGE_BYTES: Final = _GAUGE.size
_COUNTER = struct.Struct("<d")


@dataclass(slots=True)
class Gauge:
    low: float
    total: float
    high: float
    count: int

    @property
    def mean(self) -> float:
        return self.total / self.count

    def add(self, other: Gauge) -> None:
        if other.low < self.low:
            self.low = other.low
        if other.high > self.high:
            self.high = other.high
        self.total += other.total
        self.count += other.count


@dataclass(frozen=True, slots=True)
class Subject:
    """`kind`: replica, device or process. `name`: the replica's id, the device's UUID, the process' name."""

    kind: str
    name: str
    node: str = ""
    model: str = ""
    release: int = 0
    lane: str = ""


@dataclass(slots=True)
class GaugeCell:
    """What was not measured is missing, not 0."""

    gauges: dict[str, Gauge] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    steps: dict[str, Histogram] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        """One reading. NaN and infinite ones are none."""
        if not math.isfinite(value):
            return
        found = self.gauges.get(name)
        if found is None:
            self.gauges[name] = Gauge(value, value, value, 1)
        else:
            found.add(Gauge(value, value, value, 1))

    def count(self, name: str, increase: float) -> None:
        self.counters[name] = self.counters.get(name, 0.0) + increase

    def add(self, other: GaugeCell) -> None:
        """`other` stays as it is, and shares nothing with this one."""
        gauges, counters, steps = self.gauges, self.counters, self.steps
        for name, gauge in other.gauges.items():
            mine = gauges.get(name)
            if mine is None:
                gauges[name] = Gauge(gauge.low, gauge.total, gauge.high, gauge.count)
                continue
            # As `Gauge.add`: the call would double the time of what is done most often.
            if gauge.low < mine.low:
                mine.low = gauge.low
            if gauge.high > mine.high:
                mine.high = gauge.high
            mine.total += gauge.total
            mine.count += gauge.count
        for name, increase in other.counters.items():
            counters[name] = counters.get(name, 0.0) + increase
        for step, histogram in other.steps.items():
            before = steps.get(step)
            if before is None:
                steps[step] = histogram.copy()
            else:
                before.absorb(histogram)


def pack_gauges(gauges: Mapping[str, Gauge], names: Sequence[str]) -> bytes:
    """Low, total, high, count of each name in order; a count of 0 = not measured. The end is cut where nothing is."""
    found = [gauges.get(name) for name in names]
    while found and found[-1] is None:
        found.pop()
    return b"".join(
        [_EMPTY if one is None else _GAUGE.pack(one.low, one.total, one.high, one.count) for one in found]
    )


def unpack_gauges(content: bytes, names: Sequence[str]) -> dict[str, Gauge]:
    """Raises ValueError for bytes of another shape. Names that this version does not know are left out."""
    if len(content) % GAUGE_BYTES:
        raise ValueError("these bytes are no gauges")
    rows = [Gauge(*numbers) for numbers in _GAUGE.iter_unpack(content)]
    return {name: row for name, row in zip(names, rows, strict=False) if row.count}


def pack_counters(counters: Mapping[str, float], names: Sequence[str]) -> bytes:
    """NaN = not counted."""
    found = [counters.get(name) for name in names]
    while found and found[-1] is None:
        found.pop()
    return b"".join([_COUNTER.pack(math.nan if one is None else one) for one in found])


def unpack_counters(content: bytes, names: Sequence[str]) -> dict[str, float]:
    """Raises ValueError for bytes of another shape."""
    if len(content) % _COUNTER.size:
        raise ValueError("these bytes are no counters")
    values = [value for (value,) in _COUNTER.iter_unpack(content)]
    return {name: value for name, value in zip(names, values, strict=False) if not math.isnan(value)}


_EMPTY = _GAUGE.pack(0.0, 0.0, 0.0, 0)
