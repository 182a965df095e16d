from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.models import Model, Node, Replica
from pool.queries.ages import FigureState
from pool.queries.memory_map import PrefixHits, ReplicaMemory, fill_of, load_memory
from pool.telemetry.store import add_cells
from tests import factories
from tests.factories import GIB
from tests.memory_seed import make_cell, store_sample

NOW = timezone.now().replace(microsecond=0)
SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.django_db


def make_replica(name: str = "r1", *, lane: str = "short", **values: Any) -> Subject:
    model = Model.objects.filter(name="chatty").first() or factories.make_model("chatty")
    release = model.releases.first() or factories.make_release(model)
    node = Node.objects.first() or factories.make_node()
    factories.make_replica(release, node=node, id=name, lane=lane, device_uuids=["gpu-0"], **values)
    return Subject("replica", name, node=node.name, model="chatty", release=1, lane=lane)


def load_one() -> ReplicaMemory:
    [replica] = load_memory(now=NOW).replicas
    return replica


def test_a_replica_that_never_told_has_no_figures() -> None:
    make_replica()

    row = load_one()

    assert row.measured.state is FigureState.ABSENT
    assert (row.kv_blocks, row.kv_used_ratio, row.kv_tail_ratio, row.allocator_ratio) == (None,) * 4
    assert (row.rss_bytes, row.preemptions, row.major_faults) == (None, None, None)
    assert row.prefix == PrefixHits(None, None, None, 0, None, None, 0)
    assert fill_of(row) is None


def test_the_newest_second_is_what_is_shown() -> None:
    subject = make_replica()
    store_sample(subject, NOW - 3 * SECOND, make_cell(used=10, free=90))
    store_sample(subject, NOW - 1 * SECOND, make_cell(used=70, reusable=20, free=10, tail=0.25, shared=7))

    row = load_one()

    assert (row.kv_blocks, row.kv_used_blocks, row.kv_reusable_blocks) == (100, 70, 20)
    assert (row.kv_used_ratio, row.kv_tail_ratio, row.kv_shared_blocks) == (0.7, 0.25, 7)
    assert (row.measured.age_s, row.measured.state) == (1.0, FigureState.MEASURED)
    fill = fill_of(row)
    assert fill is not None
    assert fill.tail_ratio == 0.25


def test_a_gauge_that_is_read_less_often_is_still_known() -> None:
    subject = make_replica()
    store_sample(subject, NOW - 4 * SECOND, make_cell(used=1, free=9, gauges={"rss_bytes": 5e9}))
    store_sample(subject, NOW - 1 * SECOND, make_cell(used=2, free=8))

    row = load_one()

    assert (row.kv_used_blocks, row.rss_bytes) == (2, 5e9)


def test_a_silent_replica_is_stale_and_then_unknown() -> None:
    store_sample(make_replica(), NOW - 20 * SECOND, make_cell(used=1, free=9))
    store_sample(make_replica("r2"), NOW - 90 * SECOND, make_cell(used=1, free=9))

    stale, gone = load_memory(now=NOW).replicas

    assert (stale.measured.state, stale.kv_used_blocks) == (FigureState.STALE, 1)
    assert (gone.measured.state, gone.kv_used_blocks) == (FigureState.ABSENT, None)


def test_printed_sizes_stand_where_no_sample_tells_them() -> None:
    printed = {"printed": {"model_memory_bytes": GIB, "kv_cache_bytes": 3 * GIB}}
    subject = make_replica(figures=printed)

    assert (load_one().weights_bytes, load_one().kv_bytes) == (GIB, 3 * GIB)

    store_sample(subject, NOW - SECOND, make_cell(used=1, gauges={"weights_bytes": 2.0 * GIB}))

    assert (load_one().weights_bytes, load_one().kv_bytes) == (2 * GIB, 3 * GIB)


def test_increases_are_of_five_minutes_over_lanes_that_a_replica_had() -> None:
    subject = make_replica()
    before = Subject("replica", "r1", node=subject.node, model="chatty", release=1, lane="long")
    for at, which in (
        (NOW - 400 * SECOND, subject),
        (NOW - 200 * SECOND, before),
        (NOW - 2 * SECOND, subject),
    ):
        store_sample(which, at, GaugeCell(counters={"preemptions": 3.0, "major_faults": 1.0}))

    row = load_one()

    assert (row.preemptions, row.major_faults, row.window_s) == (6.0, 2.0, 300.0)


def test_prefix_hits_of_engine_and_gateway_stand_beside_each_other() -> None:
    counters = {"prefix_queries_tokens": 1000.0, "prefix_hits_tokens": 900.0}
    store_sample(make_replica(), NOW - 2 * SECOND, GaugeCell(counters=counters))
    store_sample(make_replica("r2", lane=""), NOW - 2 * SECOND, GaugeCell(counters=counters))
    for replica, lane in (("r1", "short"), ("r2", "long")):
        key = SeriesKey("chatty", release=1, replica=replica, lane=lane)
        cell = Cell(counts={"requests": 4, "prompt_tokens": 800, "cached_tokens": 600})
        add_cells({(key, NOW - 2 * SECOND): cell})

    memory = load_memory(now=NOW)

    hits = PrefixHits(1000.0, 900.0, 0.9, 800, 600, 0.75, 4)
    assert [replica.prefix for replica in memory.replicas] == [hits, hits]
    assert [(row.lane, row.prefix) for row in memory.lanes] == [
        ("long", PrefixHits(None, None, None, 800, 600, 0.75, 4)),
        ("short", hits),
    ]


def test_answers_that_do_not_tell_what_was_cached_are_not_0_percent() -> None:
    key = SeriesKey("chatty", release=1, replica="r1", lane="short")
    add_cells({(key, NOW - 2 * SECOND): Cell(counts={"requests": 4, "prompt_tokens": 800})})
    subject = make_replica()

    assert load_one().prefix.gateway_ratio is None

    counters = {"prefix_queries_tokens": 1000.0, "prefix_hits_tokens": 0.0}
    store_sample(subject, NOW - 2 * SECOND, GaugeCell(counters=counters))

    assert load_one().prefix.gateway_ratio == 0.0


def test_only_replicas_that_hold_memory_are_listed() -> None:
    make_replica()
    make_replica("r2")
    Replica.objects.filter(pk="r2").update(phase="stopped")

    assert [row.id for row in load_memory(now=NOW, model="chatty").replicas] == ["r1"]
    assert load_memory(now=NOW, model="other").replicas == ()


def test_many_replicas_cost_no_more_queries(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for index in range(6):
        store_sample(make_replica(f"r{index}"), NOW, make_cell(used=1))

    with django_assert_num_queries(7):
        load_memory(now=NOW)
