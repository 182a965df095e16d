from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pool.domain.switching import Move, find_switch

T0 = datetime(2026, 1, 1, tzinfo=UTC)
GPU = frozenset({"GPU-1"})


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def moves(*rows: tuple[str, str, float], devices: frozenset[str] = GPU) -> list[Move]:
    return [Move(replica, devices, phase, at(seconds)) for replica, phase, seconds in rows]


def switch_of(replica: str, found: list[Move], *, created_s: float = 0) -> float | None:
    took = find_switch(replica, created_at=at(created_s), devices=GPU, moves=found)
    return None if took is None else took.total_seconds()


def test_a_restart_in_place_is_a_switch() -> None:
    found = moves(("a", "ready", 1), ("a", "draining", 10), ("a", "loading", 15), ("a", "ready", 42))

    assert switch_of("a", found) == 32


def test_a_replacement_on_the_same_device_is_a_switch() -> None:
    found = moves(
        ("a", "ready", 1),
        ("a", "draining", 100),
        ("a", "stopped", 110),
        ("b", "loading", 111),
        ("b", "ready", 150),
    )

    assert switch_of("b", found, created_s=95) == 50


def test_loading_beside_what_serves_is_none() -> None:
    beside = moves(("a", "ready", 1), ("b", "loading", 20), ("b", "ready", 40), ("a", "draining", 41))
    elsewhere = [
        *moves(("a", "ready", 1), ("a", "draining", 30), devices=frozenset({"GPU-2"})),
        *moves(("b", "ready", 40)),
    ]

    assert (switch_of("b", beside), switch_of("b", elsewhere)) == (None, None)


def test_capacity_that_comes_back_later_is_new() -> None:
    found = moves(("a", "ready", 1), ("a", "draining", 100), ("b", "loading", 4000), ("b", "ready", 4020))

    assert switch_of("b", found, created_s=3990) is None


def test_what_another_one_replaced_already_is_not_counted_again() -> None:
    found = moves(
        ("a", "ready", 1), ("a", "failed", 10), ("b", "ready", 30), ("a", "loading", 31), ("a", "ready", 60)
    )

    assert switch_of("a", found) is None


def test_the_first_start_and_one_that_is_not_ready_have_none() -> None:
    assert switch_of("a", moves(("a", "loading", 1), ("a", "ready", 20))) is None
    assert switch_of("a", moves(("a", "loading", 1))) is None
    assert switch_of("a", []) is None
