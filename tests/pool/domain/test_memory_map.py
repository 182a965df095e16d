from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.gauges import GaugeCell
from pool.domain.memory_map import (
    Holding,
    KvFill,
    Measured,
    MemoryOwner,
    read_fill,
    split_device,
    sum_parts,
    tail_ratio,
)

GIB = 2**30
SIZES = st.one_of(st.none(), st.floats(0, 200 * GIB))
SHARES = st.floats(0, 1)
FILLS = st.one_of(
    st.none(),
    st.builds(
        KvFill,
        used_blocks=st.floats(0, 1e5),
        reusable_blocks=st.floats(0, 1e5),
        free_blocks=st.floats(0, 1e5),
        tail_ratio=st.one_of(st.none(), SHARES),
    ),
)
HOLDINGS = st.lists(
    st.builds(
        Holding,
        replica=st.sampled_from(["r1", "r2", "r3"]),
        weights_bytes=SIZES,
        kv_bytes=SIZES,
        fill=FILLS,
        idle_bytes=SIZES,
        promised_bytes=st.floats(0, 100 * GIB),
    ),
    max_size=3,
)


def sizes_of(measured: Measured, *holdings: Holding) -> dict[MemoryOwner, float]:
    return {owner: size / GIB for owner, size in sum_parts(split_device(measured, holdings)).items()}


def test_a_device_is_split_by_who_holds_it() -> None:
    fill = KvFill(used_blocks=50, reusable_blocks=20, free_blocks=30, tail_ratio=0.1)
    measured = Measured(80 * GIB, free_bytes=20 * GIB, ours_bytes=54 * GIB)

    sizes = sizes_of(
        measured, Holding(replica="r1", weights_bytes=10 * GIB, kv_bytes=40 * GIB, fill=fill, idle_bytes=GIB)
    )

    assert sizes == {
        MemoryOwner.WEIGHTS: 10,
        MemoryOwner.KV_USED: 18,
        MemoryOwner.KV_TAIL: 2,
        MemoryOwner.KV_REUSABLE: 8,
        MemoryOwner.UNUSED: 13,
        MemoryOwner.ENGINE_OTHER: 3,
        MemoryOwner.FOREIGN: 6,
        MemoryOwner.FREE: 20,
    }


def test_a_cache_that_tells_nothing_of_itself_is_not_called_used_or_free() -> None:
    sizes = sizes_of(
        Measured(80 * GIB, free_bytes=30 * GIB, ours_bytes=50 * GIB),
        Holding(replica="r1", weights_bytes=10 * GIB, kv_bytes=40 * GIB),
    )

    assert sizes == {MemoryOwner.WEIGHTS: 10, MemoryOwner.KV_UNSPLIT: 40, MemoryOwner.FREE: 30}


def test_pages_that_are_not_there_yet_are_taken_from_what_is_empty() -> None:
    fill = KvFill(used_blocks=1, reusable_blocks=1, free_blocks=8, tail_ratio=0.0)

    sizes = sizes_of(
        Measured(16 * GIB, free_bytes=13 * GIB, ours_bytes=3 * GIB),
        Holding(replica="r1", weights_bytes=GIB, kv_bytes=5 * GIB, fill=fill),
    )

    assert sizes == {
        MemoryOwner.WEIGHTS: 1,
        MemoryOwner.KV_USED: 0.5,
        MemoryOwner.KV_REUSABLE: 0.5,
        MemoryOwner.UNUSED: 1,
        MemoryOwner.FREE: 13,
    }


def test_a_start_is_promised_no_more_than_is_free() -> None:
    sizes = sizes_of(
        Measured(80 * GIB, free_bytes=10 * GIB, ours_bytes=0),
        Holding(replica="r1", promised_bytes=20 * GIB),
    )

    assert sizes == {MemoryOwner.PROMISED: 10, MemoryOwner.FOREIGN: 70}


@given(
    total=st.integers(1, 200 * GIB),
    free=st.integers(0, 200 * GIB),
    ours=st.integers(0, 200 * GIB),
    holdings=HOLDINGS,
)
def test_the_parts_always_add_up_to_the_total(
    total: int, free: int, ours: int, holdings: list[Holding]
) -> None:
    parts = split_device(Measured(total, free_bytes=free, ours_bytes=ours), holdings)

    assert sum(part.size_bytes for part in parts) == total
    assert all(part.size_bytes > 0 for part in parts)


@pytest.mark.parametrize(
    ("blocks", "held", "tail", "ratio"),
    [
        (63, 1008, 900, 0.0),
        (64, 1024, 256, 0.25),
        (64, 0, 0, 0.0),
        (64, 1024, 2000, 1.0),
        (64, 1024, -5, 0.0),
    ],
)
def test_the_tail_of_few_blocks_is_no_fragmentation(blocks: int, held: int, tail: int, ratio: float) -> None:
    assert tail_ratio(held_blocks=blocks, held_tokens=held, tail_tokens=tail) == ratio


def test_a_fill_needs_all_three_states() -> None:
    cell = GaugeCell()
    cell.note("kv_used_blocks", 5)
    cell.note("kv_free_blocks", 3)

    assert read_fill(cell.gauges) is None

    cell.note("kv_reusable_blocks", 2)
    cell.note("kv_held_tokens", 80)
    cell.note("kv_tail_tokens", 8)

    fill = read_fill(cell.gauges)
    assert fill == KvFill(used_blocks=5, reusable_blocks=2, free_blocks=3, tail_ratio=0.1)
    assert fill.used_ratio == 0.5


def test_a_scan_of_before_shares_out_what_is_not_used_now() -> None:
    cell = GaugeCell()
    for name, value in (
        ("kv_blocks", 100),
        ("kv_used_blocks", 60),
        ("kv_reusable_blocks", 20),
        ("kv_free_blocks", 60),
    ):
        cell.note(name, value)

    fill = read_fill(cell.gauges)

    assert fill == KvFill(used_blocks=60, reusable_blocks=10, free_blocks=30)


def test_an_empty_cache_has_no_use() -> None:
    assert KvFill(used_blocks=0, reusable_blocks=0, free_blocks=0).used_ratio is None
