from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from pool.domain.gauges import Subject
from pool.domain.memory_map import MemoryOwner
from pool.models import Model, Node, Replica
from pool.queries.ages import FigureState
from pool.queries.device_memory import DeviceSplit, PoolMemory, ReplicaMove, load_pool_memory
from pool.queries.memory_map import load_memory
from tests import factories
from tests.factories import GIB
from tests.memory_seed import make_cell, store_sample

NOW = timezone.now().replace(microsecond=0)
PRINTED = {"printed": {"model_memory_bytes": 10 * GIB, "kv_cache_bytes": 40 * GIB}}

pytestmark = pytest.mark.django_db


def load() -> PoolMemory:
    return load_pool_memory(load_memory(now=NOW).replicas, now=NOW)


def make_gpu(node: Node, index: int, *, ours: float = 0, foreign: float = 0) -> str:
    free = round((80 - ours - foreign) * GIB)
    sizes: dict[str, Any] = {"total_bytes": 80 * GIB, "free_bytes": free, "ours_bytes": round(ours * GIB)}
    return factories.make_device(
        node, index=index, foreign_bytes=round(foreign * GIB), measured_at=NOW, **sizes
    ).uuid


def make_replica(node: Node, uuid: str, name: str, **values: Any) -> Subject:
    model = Model.objects.filter(name="chatty").first() or factories.make_model("chatty")
    release = model.releases.first() or factories.make_release(model)
    fields: dict[str, Any] = {"figures": PRINTED, "device_uuids": [uuid]}
    factories.make_replica(release, node=node, id=name, **(fields | values))
    return Subject("replica", name, node=node.name, model="chatty", release=1)


@pytest.fixture
def node() -> Node:
    node = factories.make_node()
    factories.make_runtime(node)
    return node


def sizes_of(device: DeviceSplit) -> dict[MemoryOwner, float]:
    return {part.owner: round(part.size_bytes / GIB, 3) for part in device.parts}


def test_a_device_is_split_by_the_state_of_its_blocks(node: Node) -> None:
    subject = make_replica(node, make_gpu(node, 0, ours=54, foreign=6), "r1")
    bytes_told = {"reserved_bytes": 3.0 * GIB, "allocated_bytes": 2.0 * GIB}
    store_sample(subject, NOW, make_cell(used=50, reusable=20, free=30, tail=0.1, gauges=bytes_told))

    [device] = load().devices

    assert sizes_of(device) == {
        MemoryOwner.WEIGHTS: 10,
        MemoryOwner.KV_USED: 18,
        MemoryOwner.KV_TAIL: 2,
        MemoryOwner.KV_REUSABLE: 8,
        MemoryOwner.UNUSED: 13,
        MemoryOwner.ENGINE_OTHER: 3,
        MemoryOwner.FOREIGN: 6,
        MemoryOwner.FREE: 20,
    }
    assert sum(part.ratio for part in device.parts) == pytest.approx(1.0, abs=1e-5)
    assert (device.filled.state, device.untold) == (FigureState.MEASURED, ())


def test_a_silent_cache_is_named_and_not_split(node: Node) -> None:
    make_replica(node, make_gpu(node, 0, ours=50), "r1")

    [device] = load().devices

    assert sizes_of(device)[MemoryOwner.KV_UNSPLIT] == 40
    assert (device.untold, device.filled.state) == (("r1",), FigureState.ABSENT)


def test_a_device_that_was_not_measured_has_no_parts_and_gives_no_room(node: Node) -> None:
    factories.make_device(node, total_bytes=None)

    memory = load()

    assert (memory.devices[0].total_bytes, memory.devices[0].parts) == (None, ())
    assert (memory.room.free_bytes, memory.room.largest_fit_bytes) == (None, None)
    assert (memory.room.devices, memory.room.left_out) == (0, 1)


def test_the_pool_tells_what_fits_and_what_to_move(node: Node) -> None:
    make_replica(node, make_gpu(node, 0, ours=52), "r1")
    make_gpu(node, 1, foreign=20)

    room = load().room

    assert (room.free_bytes, room.largest_fit_bytes, room.largest_device) == (88 * GIB, 60 * GIB, "node-a 1")
    assert room.moves == (ReplicaMove("r1", "chatty", "node-a 0", "node-a 1", 52 * GIB),)
    assert room.fit_after_bytes == 80 * GIB


@pytest.mark.parametrize(
    "changed",
    [{"phase": "draining"}, {"wish": "stop"}, {"device_uuids": ["cuda-node-a-0", "cuda-node-a-9"]}],
)
def test_what_leaves_or_spans_devices_is_not_moved(node: Node, changed: dict[str, object]) -> None:
    make_replica(node, make_gpu(node, 0, ours=52), "r1")
    make_gpu(node, 1, foreign=20)
    Replica.objects.update(**changed)

    assert load().room.moves == ()


def test_memory_that_a_start_was_promised_is_not_free(node: Node) -> None:
    make_replica(node, make_gpu(node, 0), "r1", phase="loading", figures={}, reserved_bytes=30 * GIB)

    memory = load()

    assert sizes_of(memory.devices[0]) == {MemoryOwner.PROMISED: 30, MemoryOwner.FREE: 50}
    assert memory.room.free_bytes == 50 * GIB
    assert memory.devices[0].untold == ()


@pytest.mark.parametrize("phase", ["cordoned", "draining", "unreachable"])
def test_a_node_that_takes_nothing_gives_no_room(node: Node, phase: str) -> None:
    make_gpu(node, 0)
    Node.objects.update(phase=phase)

    assert (load().room.devices, load().room.left_out) == (0, 1)


def test_an_old_measurement_gives_no_room(node: Node) -> None:
    factories.make_device(node, measured_at=NOW - timedelta(minutes=1))

    assert load().room.free_bytes is None


def test_many_devices_cost_no_more_queries(
    node: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for index in range(5):
        make_replica(node, make_gpu(node, index, ours=50), f"r{index}")
    replicas = load_memory(now=NOW).replicas

    with django_assert_num_queries(3):
        load_pool_memory(replicas, now=NOW)
