"""Looks at all engines and devices of this node twice a second and passes on what it saw; nobody waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import close_old_connections

from pool.domain.gauges import GaugeCell
from pool.domain.prometheus import Page
from pool.ports import DeviceFacts, EngineLoad, EngineSpec
from workers.device_meter import DeviceMeter
from workers.replica_totals import TotalsBoard
from workers.replica_trace import ReplicaTrace, WatchedEngine, dump_cell
from workers.ring_records import FinishedRequest
from workers.sample_board import SampleBoard
from workers.segment_relay import SegmentRelay

logger = logging.getLogger(__name__)

EVERY_S: Final = 0.5
MEMORY_EVERY: Final = 4
"""Looks: the sizes of processes every 2 s."""
PROCESSES_EVERY: Final = 10
STEPPING_S: Final = 2.0
"""An engine whose newest step is older is looked at as before: it idles, or it hangs."""
OWN_PROCESS: Final = "worker"
"""As the launcher names the process that this runs in."""
WATCH_S: Final = 3.0
"""The plug-in makes block maps for so long after each look of a page."""
MOST_REQUESTS: Final = 4000
"""Finished requests in one sample; 8,000 a second are far beyond what one node serves."""
STATE_GAUGES: Final = (
    "running", "waiting", "kv_blocks", "kv_used_blocks", "kv_reusable_blocks", "kv_tail_ratio", "allocator_ratio",
    "batch_sequences", "rss_bytes", "age_s",
)  # fmt: skip


@dataclass
class SamplePublisher:
    """`list_engines`: what runs on this node now. `list_processes`: other processes of the installation, by name.
    `list_devices`: as they were measured last."""

    node: str
    board: SampleBoard
    meter: DeviceMeter
    list_engines: Callable[[], Iterable[WatchedEngine]]
    list_processes: Callable[[], Mapping[str, Mapping[str, float]]] = dict
    list_devices: Callable[[], Iterable[DeviceFacts]] = tuple
    clock: Callable[[], float] = time.monotonic
    traces: dict[tuple[str, int], ReplicaTrace] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)
    pass_s: float = 0.0
    requests_dropped: int = 0
    processes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    _loads: dict[tuple[str, int], EngineLoad] = field(default_factory=dict)
    _looks: int = 0
    _told: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.segments = SegmentRelay(self.board.url)
        self.totals = TotalsBoard(self.node, clock=self.clock)
        self.thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def start(self) -> None:
        self.meter.start()
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.meter.stop()

    def note_load(self, spec: EngineSpec, load: EngineLoad) -> None:
        """From the engine's watcher, in its thread; only the newest is kept."""
        self._loads[spec.replica_id, spec.generation] = load

    def has_ring(self, spec: EngineSpec) -> bool:
        trace = self.traces.get((spec.replica_id, spec.generation))
        return trace is not None and trace.has_ring

    def find_live_load(self, spec: EngineSpec) -> EngineLoad | None:
        """From the ring of an engine that makes steps; None for one that made none lately."""
        trace = self.traces.get((spec.replica_id, spec.generation))
        newest = trace.newest if trace is not None else None
        if trace is None or newest is None or self.clock() - newest.at_s > STEPPING_S:
            return None
        return trace.live_load()

    def run_once(self) -> None:
        before = time.thread_time()
        gone = self._follow_engines()
        sample, states = self._look()
        watched = self.board.send(sample, states, gone, self._list_loads())
        if watched:
            self._send_maps(watched)
        self._looks += 1
        self.pass_s = time.thread_time() - before

    def fill(self, page: Page) -> None:
        """The series of this node's engines, devices and of this publisher."""
        self.totals.fill(page)
        self.meter.fill(page, node=self.node)
        page.set("sluice_samples_sent_total", self.board.sent, node=self.node)
        page.set("sluice_samples_dropped_total", self.board.dropped, node=self.node)
        page.set("sluice_sample_pass_seconds", self.pass_s, node=self.node)
        page.set("sluice_engine_records_dropped_total", self.requests_dropped, node=self.node)
        for name, gauges in sorted(self.processes.items()):
            page.set(
                "sluice_process_resident_memory_bytes", gauges.get("rss_bytes"), node=self.node, name=name
            )

    def _run(self) -> None:
        due = time.monotonic()
        while not self.stopping.is_set():
            try:
                self.run_once()
            except Exception:
                # A loop edge: a sample is lost, the next look begins from the rings again.
                self.board.dropped += 1
                logger.exception("a look at the engines failed")
            finally:
                close_old_connections()
            due = max(due + EVERY_S, time.monotonic())
            self.stopping.wait(max(0.0, due - time.monotonic()))

    def _follow_engines(self) -> list[str]:
        """Traces of what runs; returns the names of those that are over."""
        engines = {engine.key: engine for engine in self.list_engines()}
        gone = [key for key in self.traces if key not in engines]
        for key in gone:
            self.traces.pop(key).close()
        for key, engine in engines.items():
            trace = self.traces.get(key)
            if trace is None:
                totals = self.totals.of(
                    key[0], model=engine.spec.served_model_name, release=engine.release, lane=engine.lane
                )
                trace = self.traces[key] = ReplicaTrace(engine, totals, clock=self.clock)
            trace.engine = engine
        self._loads = {key: load for key, load in self._loads.items() if key in engines}
        return [f"{replica}.{generation}" for replica, generation in gone]

    def _look(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        with_memory = self._looks % MEMORY_EVERY == 0
        replicas: list[dict[str, Any]] = []
        finished: list[tuple[str, FinishedRequest]] = []
        states: dict[str, dict[str, Any]] = {}
        for key, trace in self.traces.items():
            if (load := self._loads.get(key)) is not None:
                trace.note_load(load)
            cell, requests = trace.look(with_memory=with_memory)
            if with_memory:
                trace.totals.device_ratios = find_shares(trace.engine.members, self.list_devices())
            finished += ((key[0], one) for one in requests)
            names = self._describe(trace)
            # Half a look: what a sample tells happened between the last one and this one.
            replicas.append({**names, "age_s": EVERY_S / 2, **dump_cell(cell), "missing": trace.missing})
            states[f"{key[0]}.{key[1]}"] = {**names, "step": _newest_of(cell), "missing": trace.missing}
        self.requests_dropped += max(0, len(finished) - MOST_REQUESTS)
        sample = {
            "node": self.node,
            "at": time.time(),
            "replicas": replicas,
            "devices": self._list_devices(),
            "processes": self._list_processes(),
            "requests": [_dump_request(*one) for one in finished[:MOST_REQUESTS]],
        }
        return sample, states

    def _list_loads(self) -> dict[str, tuple[EngineLoad, float]]:
        """For the gateways: load and its age by `<replica>.<generation>`, of engines with a ring."""
        return {
            f"{replica}.{generation}": (load, trace.state_age_s)
            for (replica, generation), trace in self.traces.items()
            if (load := trace.live_load()) is not None
        }

    def _describe(self, trace: ReplicaTrace) -> dict[str, Any]:
        engine = trace.engine
        return {
            "id": engine.spec.replica_id,
            "generation": engine.spec.generation,
            "model": engine.spec.served_model_name,
            "release": engine.release,
            "lane": engine.lane,
            "simulated": trace.simulated,
        }

    def _list_devices(self) -> list[dict[str, Any]]:
        now = self.clock()
        return [
            {"uuid": uuid, "age_s": max(0.0, now - at), **dump_cell(cell)}
            for at, second, _ in self.meter.take_seconds()
            for uuid, cell in second.items()
        ]

    def _list_processes(self) -> list[dict[str, Any]]:
        if self._looks % PROCESSES_EVERY:
            return []
        self.processes = self.list_processes()
        found = []
        for name, gauges in self.processes.items():
            cell = GaugeCell()
            for gauge, value in gauges.items():
                cell.note(gauge, value)
            if name == OWN_PROCESS:
                cell.counters = self._count_own()
            found.append({"name": name, **dump_cell(cell)})
        return found

    def _count_own(self) -> dict[str, float]:
        """Since this was last told."""
        told, self._told = self._told, (self.board.sent, self.board.dropped)
        return {"samples": self._told[0] - told[0], "samples_dropped": self._told[1] - told[1]}

    def _send_maps(self, watched: frozenset[str]) -> None:
        maps = {}
        rings = {}
        for (replica, _), trace in self.traces.items():
            if replica in watched:
                rings[replica] = (trace.reader, str(trace.engine.spec.directory))
                trace.reader.watch(WATCH_S)
                if (found := trace.reader.read_block_map()) is not None:
                    maps[replica] = found
        if maps:
            self.board.put_maps(maps)
        if rings and self.board.prefix:
            self.segments.follow(self.board.prefix, rings)


def find_shares(members: Iterable[int], devices: Iterable[DeviceFacts]) -> dict[str, float]:
    """Part of each device's memory that these processes hold, by UUID. Absent where it is not told of one of them."""
    pids = frozenset(members)
    shares = {}
    for device in devices:
        held = [process.used_bytes for process in device.processes if process.pid in pids]
        if held and device.memory_total_bytes and None not in held:
            shares[device.uuid] = sum(used or 0 for used in held) / device.memory_total_bytes
    return shares


def _newest_of(cell: GaugeCell) -> dict[str, float]:
    return {name: cell.gauges[name].mean for name in STATE_GAUGES if name in cell.gauges}


def _dump_request(replica: str, one: FinishedRequest) -> dict[str, Any]:
    return {
        "id": one.request_id,
        "replica": replica,
        "queue_s": one.queue_s,
        "prefill_s": one.prefill_s,
        "decode_s": one.decode_s,
        "preemptions": one.preemptions,
        "cached_tokens": one.cached_tokens,
    }
