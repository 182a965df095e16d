"""What this worker has seen of each replica since it started, for `/metrics`: counted on over restarts of engines."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pool.domain.gauges import GaugeCell
from pool.domain.prometheus import DELAY_BOUNDS_S, STEP_BOUNDS_S, ClassicHistogram, Page

MOST_REPLICAS: Final = 512
"""Of them the longest unseen are forgotten; a node serves some dozens at once."""
LEAVES_AFTER_S: Final = 10.0
"""Gauges of an engine that is not looked at any more are absent, not frozen. Its counters stay."""
GAUGES: Final = {
    "running": "sluice_engine_running",
    "waiting": "sluice_engine_waiting",
    "age_s": "sluice_engine_step_age_seconds",
    "rss_bytes": "sluice_engine_rss_bytes",
}
COUNTERS: Final = {
    "preemptions": "sluice_engine_preemptions_total",
    "prefix_queries_tokens": "sluice_engine_prefix_queries_tokens_total",
    "prefix_hits_tokens": "sluice_engine_prefix_hits_tokens_total",
    "major_faults": "sluice_engine_major_faults_total",
}
TOKENS: Final = {"prefill_tokens": "prefill", "decode_tokens": "decode", "cached_tokens": "cached"}


@dataclass
class ReplicaTotals:
    """`labels`: model, release, lane, replica and node. Counted by the publisher's thread, rendered by a scrape's."""

    labels: Mapping[str, str]
    steps: dict[str, ClassicHistogram] = field(default_factory=dict)
    queue: ClassicHistogram = field(default_factory=lambda: ClassicHistogram(DELAY_BOUNDS_S))
    has_queue: bool = False
    counters: dict[str, float] = field(default_factory=dict)
    newest: GaugeCell = field(default_factory=GaugeCell)
    looked_at: float = -1e9
    lost_steps: int = 0
    lost_before: int = 0
    missing: str = ""
    device_ratios: dict[str, float] = field(default_factory=dict)

    def add(self, cell: GaugeCell, times: Mapping[str, Iterable[float]], *, lost_steps: int) -> None:
        """`times`: seconds of steps by their kind, and `scheduler_queue`. `lost_steps`: of this generation's ring."""
        for kind, values in times.items():
            if kind == "scheduler_queue":
                self.has_queue = True
                self.queue.observe_many(values)
            else:
                self.steps.setdefault(kind, ClassicHistogram(STEP_BOUNDS_S)).observe_many(values)
        for name, increase in cell.counters.items():
            self.counters[name] = self.counters.get(name, 0.0) + increase
        self.lost_steps += max(0, lost_steps - self.lost_before)
        self.lost_before = lost_steps
        self.newest = cell

    def fill(self, page: Page, now_s: float) -> None:
        labels = self.labels
        for stage, histogram in sorted(self.steps.items()):
            page.set_histogram("engine_step_latency_seconds", histogram, **labels, stage=stage)
        if self.has_queue:
            page.set_histogram("scheduler_queue_delay_seconds", self.queue, **labels)
        for name, metric in COUNTERS.items():
            page.set(metric, self.counters.get(name), **labels)
        for name, kind in TOKENS.items():
            page.set("sluice_engine_tokens_total", self.counters.get(name), **labels, kind=kind)
        if self.steps:
            page.set("sluice_engine_steps_lost_total", self.lost_steps, **labels)
        if now_s - self.looked_at <= LEAVES_AFTER_S:
            self._fill_gauges(page)

    def _fill_gauges(self, page: Page) -> None:
        labels = self.labels
        for name, metric in GAUGES.items():
            page.set(metric, self._gauge(name), **labels)
        page.set("memory_fragmentation_ratio", self._gauge("kv_tail_ratio"), **labels, kind="kv_tail")
        page.set("memory_fragmentation_ratio", self._gauge("allocator_ratio"), **labels, kind="allocator")
        for device, ratio in sorted(self.device_ratios.items()):
            page.set("gpu_mem_allocated_ratio", ratio, **labels, device=device)
        blocks = self._gauge("kv_blocks")
        if blocks:
            for name in ("used", "reusable"):
                held = self._gauge(f"kv_{name}_blocks")
                page.set(f"sluice_engine_kv_{name}_ratio", None if held is None else held / blocks, **labels)
        if self.missing:
            page.set("sluice_engine_telemetry_missing", 1, **labels, reason=self.missing)

    def _gauge(self, name: str) -> float | None:
        found = self.newest.gauges.get(name)
        return None if found is None else found.mean


class TotalsBoard:
    """The replicas of this node by id. Safe for the publisher's thread and those of scrapes."""

    def __init__(self, node: str, *, clock: Callable[[], float]) -> None:
        self._node = node
        self._clock = clock
        self._totals: OrderedDict[str, ReplicaTotals] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, replica: str, *, model: str, release: int, lane: str) -> ReplicaTotals:
        """The same for each generation of a replica, so that its counters only grow."""
        with self._lock:
            found = self._totals.get(replica)
            if found is None:
                labels = {
                    "model": model, "release": str(release), "lane": lane, "replica": replica, "node": self._node,
                }  # fmt: skip
                found = self._totals[replica] = ReplicaTotals(labels)
            self._totals.move_to_end(replica)
            while len(self._totals) > MOST_REPLICAS:
                self._totals.popitem(last=False)
            found.lost_before = 0
            return found

    def list_all(self) -> list[ReplicaTotals]:
        with self._lock:
            return list(self._totals.values())

    def find(self, replica: str) -> ReplicaTotals | None:
        with self._lock:
            return self._totals.get(replica)

    def fill(self, page: Page) -> None:
        for totals in self.list_all():
            totals.fill(page, self._clock())
