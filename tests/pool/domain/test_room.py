from __future__ import annotations

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from pool.domain.room import LEAST_GAIN_BYTES, DeviceRoom, Move, Room, Tenant, find_room

GIB = 2**30
VLLM = frozenset({"vllm"})


def device(
    name: str, free: float, *tenants: tuple[str, float], runtimes: frozenset[str] = VLLM, kind: str = "cuda"
) -> DeviceRoom:
    return DeviceRoom(
        id=name,
        node="n1",
        kind=kind,
        free_bytes=round(free * GIB),
        runtimes=runtimes,
        tenants=tuple(Tenant(replica, round(size * GIB), "vllm") for replica, size in tenants),
    )


def moved(room: Room) -> list[tuple[str, str, str]]:
    return [(move.replica, move.source, move.target) for move in room.moves]


def test_a_pool_without_devices_has_no_room() -> None:
    assert find_room([]) == Room(0, 0, None)


def test_free_memory_on_two_devices_is_no_single_fit() -> None:
    room = find_room([device("a", 30), device("b", 20)])

    assert (room.free_bytes, room.largest_fit_bytes, room.largest_device) == (50 * GIB, 30 * GIB, "a")
    assert room.moves == ()
    assert room.fit_after_bytes is None


def test_the_move_that_makes_the_most_room_is_named() -> None:
    room = find_room([device("a", 10, ("big", 50)), device("b", 25, ("small", 20)), device("c", 22)])

    assert room.moves == (Move("small", "b", "c", 20 * GIB),)
    assert room.fit_after_bytes == 45 * GIB


def test_the_tightest_device_takes_what_moves() -> None:
    room = find_room([device("a", 40, ("r1", 20)), device("b", 39), device("c", 21)])

    assert moved(room) == [("r1", "a", "c")]


def test_two_moves_must_be_worth_it() -> None:
    little = find_room([device("a", 40, ("r1", 30), ("r2", 5)), device("b", 31), device("c", 6)])
    much = find_room([device("a", 40, ("r1", 30), ("r2", 25)), device("b", 31), device("c", 26)])

    assert moved(little) == [("r1", "a", "b")]
    assert moved(much) == [("r1", "a", "b"), ("r2", "a", "c")]
    assert much.fit_after_bytes == 95 * GIB


def test_a_replica_only_moves_to_its_runtime_and_kind() -> None:
    other = find_room(
        [
            device("a", 10, ("r1", 20)),
            device("b", 30, runtimes=frozenset({"sim"})),
            device("c", 30, kind="cpu"),
        ]
    )

    assert other.moves == ()


def test_no_move_is_named_for_a_breath() -> None:
    assert find_room([device("a", 40, ("r1", 0.1)), device("b", 20)]).moves == ()


NUMBERS = st.integers(0, 40).map(lambda gib: gib * 1.0)
POOLS = st.lists(st.tuples(NUMBERS, st.lists(st.integers(1, 30), max_size=3)), min_size=1, max_size=4)


def _largest_with_one_move(pool: list[DeviceRoom]) -> int:
    best = max(one.free_bytes for one in pool)
    for source, target in product(pool, pool):
        for tenant in source.tenants:
            if source.id != target.id and target.free_bytes >= tenant.size_bytes:
                best = max(best, source.free_bytes + tenant.size_bytes)
    return best


@settings(max_examples=200)
@given(POOLS)
def test_the_search_finds_what_trying_everything_finds(shape: list[tuple[float, list[int]]]) -> None:
    pool = [
        device(f"d{index}", free, *((f"r{index}-{n}", size) for n, size in enumerate(sizes)))
        for index, (free, sizes) in enumerate(shape)
    ]
    room = find_room(pool)
    one = _largest_with_one_move(pool)

    after = room.fit_after_bytes or room.largest_fit_bytes
    assert after >= one or one - room.largest_fit_bytes < LEAST_GAIN_BYTES
    free = {one.id: one.free_bytes for one in pool}
    for move in room.moves:
        free[move.target] -= move.size_bytes
        free[move.source] += move.size_bytes
    assert min(free.values()) >= 0
    assert max(free.values()) >= after
    assert len({move.replica for move in room.moves}) == len(room.moves)
    assert all(a.source == b.source for a, b in combinations(room.moves, 2))
