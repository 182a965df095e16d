"""From an engine's ring, load and processes to one sample and to the series of `/metrics`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pool.domain.histogram import bucket_of
from pool.domain.prometheus import Page
from pool.ports import EngineLoad
from tests.workers.engine_rings import make_engine, make_finished, make_ring, make_step, put_map, put_step
from workers.plugin.sluice_engine import ring
from workers.replica_totals import TotalsBoard
from workers.replica_trace import ReplicaTrace, WatchedEngine

LOAD = EngineLoad(4, 5, 0.5, 100.0, 40.0, 7.0, 90.0, 30.0)


class Watch:
    """A node's view of one replica over its generations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.board = TotalsBoard("n1", clock=time.monotonic)
        self.traces: list[ReplicaTrace] = []

    def follow(self, engine: WatchedEngine) -> ReplicaTrace:
        totals = self.board.of(engine.spec.replica_id, model="chat", release=3, lane="short")
        self.traces.append(ReplicaTrace(engine, totals))
        return self.traces[-1]

    def scrape(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Family → values of its samples by name and labels (without those of the replica)."""
        page = Page()
        self.board.fill(page)
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(page.render()):
            for one in family.samples:
                own = [v for k, v in one.labels.items() if k in ("stage", "le", "kind", "device", "reason")]
                found.setdefault(family.name, {})[(one.name, *own)] = one.value
        return found


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made = Watch(tmp_path)
    yield made
    for trace in made.traces:
        trace.close()


def test_steps_are_folded_by_what_they_computed(watch: Watch) -> None:
    engine = make_engine(watch.folder)
    writer = make_ring(engine)
    trace = watch.follow(engine)
    trace.look(with_memory=False)
    for step in (make_step(), make_step(running=4, waiting=0), make_step(kind=ring.PREFILL, preempted=2)):
        put_step(writer, step)

    cell, _ = trace.look(with_memory=False)

    assert {name: one.count for name, one in cell.steps.items()} == {"decode": 2, "prefill": 1}
    assert cell.steps["decode"].counts == {bucket_of(0.012): 2}
    assert (cell.gauges["running"].low, cell.gauges["running"].high) == (2, 4)
    assert (cell.gauges["waiting"].low, cell.gauges["waiting"].total, cell.gauges["waiting"].count) == (
        0,
        2,
        3,
    )
    assert (cell.counters["steps"], cell.counters["prefill_tokens"], cell.counters["decode_tokens"]) == (
        3,
        100,
        6,
    )
    assert cell.counters["preemptions"] == 2
    assert cell.gauges["age_s"].mean < 5


def test_an_idle_engine_keeps_its_state_and_counts_nothing(watch: Watch) -> None:
    engine = make_engine(watch.folder)
    writer = make_ring(engine)
    put_step(writer, make_step(running=2, waiting=1, used_blocks=8))
    writer.words[ring.RUNNING] = writer.words[ring.WAITING] = writer.words[ring.USED_BLOCKS] = 0
    trace = watch.follow(engine)
    trace.look(with_memory=False)

    cell, _ = trace.look(with_memory=False)

    assert (cell.gauges["running"].mean, cell.gauges["kv_used_blocks"].mean) == (0, 0)
    assert (cell.counters, cell.steps) == ({}, {})


def test_fc_29_without_a_ring_the_reason_is_told_and_nothing_is_zero(watch: Watch) -> None:
    trace = watch.follow(make_engine(watch.folder))

    cell, finished = trace.look(with_memory=False)

    assert "plug-in is not installed" in trace.missing
    assert (cell.gauges, cell.counters, cell.steps, finished) == ({}, {}, {}, [])
    found = watch.scrape()
    assert set(found) == {"sluice_engine_telemetry_missing"}
    assert ("sluice_engine_telemetry_missing", trace.missing) in found["sluice_engine_telemetry_missing"]


def test_without_a_ring_the_engines_own_gauges_are_taken(watch: Watch) -> None:
    trace = watch.follow(make_engine(watch.folder))
    trace.note_load(LOAD)

    cell, _ = trace.look(with_memory=False)

    assert (cell.gauges["running"].mean, cell.gauges["waiting"].mean) == (4, 5)


def test_counters_of_the_engine_grow_from_the_first_reading_on(watch: Watch) -> None:
    trace = watch.follow(make_engine(watch.folder))
    increases = []
    for queries in (90.0, 100.0, None, 103.0, 5.0):
        trace.note_load(EngineLoad(1, 0, 0.1, None, None, None, queries, None))
        cell, _ = trace.look(with_memory=False)
        increases.append(cell.counters.get("prefix_queries_tokens"))

    assert increases == [None, 10, None, None, 5]


def test_blocks_are_told_with_their_waste(watch: Watch) -> None:
    engine = make_engine(watch.folder)
    writer = make_ring(engine)
    put_step(writer, make_step())
    put_map(writer, used=80, tail_tokens=320)
    trace = watch.follow(engine)

    cell, _ = trace.look(with_memory=False)

    told = {name: cell.gauges[name].mean for name in cell.gauges if name.startswith(("kv_", "largest"))}
    assert told == {
        "kv_used_blocks": 40, "kv_blocks": 100, "kv_bytes": 4096, "kv_shared_blocks": 0, "kv_reusable_blocks": 2,
        "kv_free_blocks": 18, "kv_held_tokens": 1280, "kv_tail_tokens": 320, "kv_tail_ratio": 0.25,
        "largest_free_run_blocks": 20,
    }  # fmt: skip
    assert watch.scrape()["memory_fragmentation_ratio"] == {("memory_fragmentation_ratio", "kv_tail"): 0.25}


def test_the_tail_of_few_blocks_is_no_fragmentation(watch: Watch) -> None:
    engine = make_engine(watch.folder)
    writer = make_ring(engine)
    put_step(writer, make_step())
    put_map(writer, used=63, tail_tokens=600)

    cell, _ = watch.follow(engine).look(with_memory=False)

    assert (cell.gauges["kv_tail_ratio"].mean, cell.gauges["kv_tail_tokens"].mean) == (0, 600)


@pytest.mark.parametrize(("reserved", "ratio"), [(2**30, 0.25), (2**30 - 1, None)])
def test_the_allocator_needs_a_gibibyte_to_say_something(
    watch: Watch, reserved: int, ratio: float | None
) -> None:
    engine = make_engine(watch.folder)
    writer = make_ring(engine)
    put_step(writer, make_step())
    writer.put_allocator(ring.AllocatorFields(time.monotonic_ns(), 2**29, reserved, 2**28, 2**29, 0, 0))

    cell, _ = watch.follow(engine).look(with_memory=False)

    found = cell.gauges.get("allocator_ratio")
    assert (None if found is None else found.mean) == ratio


def test_finished_requests_are_told_and_their_waits_counted(watch: Watch) -> None:
    engine = make_engine(watch.folder)
    writer = make_ring(engine)
    trace = watch.follow(engine)
    trace.look(with_memory=False)
    writer.put_finished(make_finished("chatcmpl-req-7-0123abcd"))
    writer.put_finished(make_finished("cmpl-req-8-0-0123abcd", queue_s=None))

    cell, finished = trace.look(with_memory=False)

    assert [(one.request_id, one.queue_s) for one in finished] == [("req-7", 0.2), ("req-8", None)]
    assert cell.steps["scheduler_queue"].count == 1


def test_series_of_a_replica_only_grow_over_restarts_of_its_engine(watch: Watch) -> None:
    counts = []
    for generation in (1, 2):
        engine = make_engine(watch.folder, generation=generation)
        writer = make_ring(engine)
        trace = watch.follow(engine)
        trace.look(with_memory=False)
        for _ in range(3):
            put_step(writer, make_step())
        trace.look(with_memory=False)
        found = watch.scrape()
        counts.append(found["engine_step_latency_seconds"]["engine_step_latency_seconds_count", "decode"])

    assert counts == [3, 6]
    assert found["engine_step_latency_seconds"]["engine_step_latency_seconds_bucket", "decode", "0.01"] == 0
    assert found["engine_step_latency_seconds"]["engine_step_latency_seconds_bucket", "decode", "0.015"] == 6


def test_the_size_of_an_engines_processes_is_told(watch: Watch) -> None:
    trace = watch.follow(make_engine(watch.folder, members=(os.getpid(), 2**22)))

    cell, _ = trace.look(with_memory=True)

    assert cell.gauges["rss_bytes"].mean > 10 * 2**20
    assert "major_faults" not in cell.counters
