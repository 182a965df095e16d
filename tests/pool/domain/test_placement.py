from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.memory import GIB, MIB
from pool.domain.node import NodePhase
from pool.domain.placement import (
    NODES_TOLD,
    DeviceView,
    ForeignUse,
    Need,
    NodeView,
    NoPlace,
    Placement,
    choose_place,
)
from pool.domain.profiles import EngineSettings
from tests.pool.domain.test_memory import SMOLLM2

GPU = DeviceView(id="GPU-0", kind="cuda", total_bytes=80 * GIB, free_bytes=79 * GIB)
NODE = NodeView(
    name="a",
    zone="z1",
    phase=NodePhase.READY,
    runtimes=frozenset({"vllm"}),
    has_version=True,
    devices=(GPU,),
)
NEED = Need(runtime="vllm", device_kind="cuda", settings=EngineSettings(), facts=SMOLLM2)
TWO_RANKS = replace(NEED, settings=EngineSettings(tensor_parallel_size=2))


def gpus(count: int, **changes: Any) -> tuple[DeviceView, ...]:
    return tuple(replace(GPU, id=f"GPU-{number}", **changes) for number in range(count))


def place(need: Need, *nodes: NodeView) -> Placement:
    found = choose_place(need, nodes)
    assert isinstance(found, Placement), found
    return found


def refuse(need: Need, *nodes: NodeView) -> NoPlace:
    found = choose_place(need, nodes)
    assert isinstance(found, NoPlace), found
    return found


def test_a_free_device_is_taken_with_its_reason() -> None:
    found = place(NEED, NODE)

    assert (found.node, found.devices) == ("a", ("GPU-0",))
    assert found.bytes_per_device == 68 * GIB
    assert found.reason == ("node a (zone z1, 0 of this release in it, 0 on the node): 68.00 GiB on GPU-0")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"phase": NodePhase.CORDONED}, "node_not_ready"),
        ({"phase": NodePhase.UNREACHABLE}, "node_not_ready"),
        ({"runtimes": frozenset()}, "runtime_missing"),
        ({"has_version": False}, "files_missing"),
        ({"has_free_port": False}, "no_free_port"),
        ({"devices": ()}, "too_few_devices"),
        ({"devices": (replace(GPU, unusable_reason="Xid 79"),)}, "device_unusable"),
        ({"devices": (replace(GPU, free_bytes=None),)}, "not_measured"),
        ({"devices": (replace(GPU, free_bytes=60 * GIB),)}, "too_full"),
    ],
)
def test_each_way_to_be_passed_over_has_its_code(changes: dict[str, Any], code: str) -> None:
    found = refuse(NEED, replace(NODE, **changes))

    assert [rejection.code for rejection in found.rejections] == [code]
    assert not found.fits_nowhere


def test_fc34_foreign_use_is_named_with_its_process() -> None:
    foreign = (
        ForeignUse(pid=99, name="small", bytes=GIB),
        ForeignUse(pid=123, name="python", bytes=40 * GIB),
    )
    full = replace(GPU, free_bytes=38 * GIB, foreign=foreign)

    found = refuse(NEED, replace(NODE, devices=(full,)))

    assert found.reason == (
        "node a: 30.00 GiB short on GPU-0: 38.00 GiB of 80.00 GiB free, "
        "foreign process pid 123 (python) holds 40.00 GiB, foreign process pid 99 (small) holds 1.00 GiB"
    )


def test_fc34_memory_promised_to_a_starting_replica_is_not_given_twice() -> None:
    reserved = replace(GPU, reserved_bytes=68 * GIB)

    found = refuse(NEED, replace(NODE, devices=(reserved,)))

    assert "57.00 GiB short on GPU-0" in found.reason
    assert "68.00 GiB reserved for replicas that are starting" in found.reason


def test_more_reserved_than_free_counts_as_nothing_available() -> None:
    assert replace(GPU, free_bytes=GIB, reserved_bytes=2 * GIB).available_bytes == 0


def test_other_nodes_are_told_with_the_place() -> None:
    found = place(NEED, replace(NODE, name="b", has_version=False), NODE, replace(NODE, name="c"))

    assert found.node == "a"
    assert found.reason.endswith("; 1 other nodes would do")
    assert [rejection.node for rejection in found.rejections] == ["b"]


def test_replicas_of_a_release_spread_over_zones_before_nodes() -> None:
    used = replace(NODE, name="a", replicas_of_release=1)
    same_zone = replace(NODE, name="b")
    other_zone = replace(NODE, name="c", zone="z2")

    assert place(NEED, used, same_zone, other_zone).node == "c"
    assert place(NEED, used, same_zone).node == "b"


def test_an_empty_device_goes_before_a_shared_one_and_a_tight_fit_before_a_wide_one() -> None:
    shared = replace(NODE, name="a", devices=(replace(GPU, replicas=1),))
    wide = replace(NODE, name="b")
    tight = replace(NODE, name="c", devices=(replace(GPU, free_bytes=70 * GIB),))

    assert place(NEED, shared, wide, tight).node == "c"


def test_a_node_where_it_failed_is_taken_last() -> None:
    need = replace(NEED, avoid=frozenset({"a"}))

    assert place(need, NODE, replace(NODE, name="b", replicas_of_release=3)).node == "b"
    assert place(need, NODE).node == "a"


def test_a_cpu_node_is_no_place_for_a_gpu_runtime() -> None:
    cpu = replace(NODE, devices=(replace(GPU, kind="cpu", id="cpu"),))

    assert refuse(NEED, cpu).rejections[0].reason == "has 0 cuda devices, 1 are needed"
    assert place(replace(NEED, device_kind="cpu"), cpu).devices == ("cpu",)


def test_ranks_stay_inside_one_nvlink_group() -> None:
    first, second, third, fourth = gpus(4)
    pairs = (
        replace(first, nvlink_group="n0", free_bytes=GIB),
        replace(second, nvlink_group="n0"),
        replace(third, nvlink_group="n1"),
        replace(fourth, nvlink_group="n1"),
    )

    assert place(TWO_RANKS, replace(NODE, devices=pairs)).devices == ("GPU-2", "GPU-3")


def test_ranks_never_span_groups_where_a_group_would_be_large_enough() -> None:
    devices = tuple(
        replace(gpu, nvlink_group=f"n{number // 2}", free_bytes=GIB if number % 2 else 79 * GIB)
        for number, gpu in enumerate(gpus(4))
    )

    found = refuse(TWO_RANKS, replace(NODE, devices=devices))

    assert found.rejections[0].code == "too_full"


def test_ranks_span_groups_that_are_all_too_small_or_absent() -> None:
    singles = tuple(replace(gpu, nvlink_group=gpu.id) for gpu in gpus(2))

    assert place(TWO_RANKS, replace(NODE, devices=singles)).devices == ("GPU-0", "GPU-1")
    assert place(TWO_RANKS, replace(NODE, devices=gpus(2))).devices == ("GPU-0", "GPU-1")


def test_free_devices_outside_of_a_group_do_not_complete_it() -> None:
    three = gpus(3)
    devices = (
        replace(three[0], nvlink_group="n0"),
        replace(three[1], nvlink_group="n0", unusable_reason="Xid 48"),
        three[2],
    )

    assert refuse(TWO_RANKS, replace(NODE, devices=devices)).rejections[0].code == "device_unusable"


def test_the_emptier_of_two_groups_is_taken() -> None:
    devices = tuple(
        replace(gpu, nvlink_group=f"n{number // 2}", replicas=1 if number < 2 else 0)
        for number, gpu in enumerate(gpus(4))
    )

    assert place(TWO_RANKS, replace(NODE, devices=devices)).devices == ("GPU-2", "GPU-3")


def test_devices_with_different_problems_are_all_told() -> None:
    devices = (replace(GPU, free_bytes=None), replace(GPU, id="GPU-1", unusable_reason="Xid 79"))

    found = refuse(NEED, replace(NODE, devices=devices))

    assert found.rejections[0].code == "no_free_devices"
    assert "GPU-0 has no fresh measurement" in found.reason
    assert "GPU-1 is unusable: Xid 79" in found.reason


def test_a_context_that_fits_nowhere_is_told_apart_from_a_full_pool() -> None:
    large = replace(NEED, settings=EngineSettings(kv_cache_memory_bytes=MIB * 64))

    found = refuse(large, NODE, replace(NODE, name="b", has_version=False))

    assert found.fits_nowhere
    assert "tokens fit into 0.06 GiB" in found.reason


def test_weights_of_unknown_size_are_not_placed_blindly() -> None:
    unknown = replace(SMOLLM2, weight_bytes=None, parameters=None)
    settings = EngineSettings(kv_cache_memory_bytes=GIB)

    found = refuse(replace(NEED, facts=unknown, settings=settings), NODE)

    assert found.rejections[0].code == "size_unknown"


def test_a_simulated_engine_needs_no_memory() -> None:
    full = replace(NODE, devices=(replace(GPU, free_bytes=None),))

    found = place(replace(NEED, simulated=True), full)

    assert found.bytes_per_device == 0


def test_unequal_devices_take_unequal_shares() -> None:
    small = replace(GPU, id="GPU-1", total_bytes=40 * GIB, free_bytes=40 * GIB)

    found = place(TWO_RANKS, replace(NODE, devices=(GPU, small)))

    assert found.bytes_per_device == 68 * GIB


def test_a_pool_without_nodes_says_so() -> None:
    assert refuse(NEED).reason == "The pool has no node."


def test_a_large_pool_is_told_in_short() -> None:
    nodes = [replace(NODE, name=f"n{number}", has_version=False) for number in range(NODES_TOLD + 3)]

    found = refuse(NEED, *nodes)

    assert found.reason.endswith("| and 3 more nodes")
    assert len(found.rejections) == NODES_TOLD + 3


@given(
    st.lists(
        st.tuples(st.integers(0, 80), st.integers(0, 80), st.sampled_from([None, "n0", "n1"])),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 3),
)
def test_a_place_never_exceeds_what_is_measured_and_not_promised(
    sizes: list[tuple[int, int, str | None]], ranks: int
) -> None:
    devices = tuple(
        replace(GPU, id=f"g{number}", free_bytes=free * GIB, reserved_bytes=kept * GIB, nvlink_group=group)
        for number, (free, kept, group) in enumerate(sizes)
    )
    need = replace(NEED, settings=EngineSettings(tensor_parallel_size=ranks))

    found = choose_place(need, [replace(NODE, devices=devices)])

    if isinstance(found, Placement):
        available = {device.id: device.available_bytes or 0 for device in devices}
        assert len(set(found.devices)) == ranks
        assert all(available[name] >= found.bytes_per_device for name in found.devices)
