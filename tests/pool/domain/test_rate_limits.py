"""What a process may take of a shared limit, on a clock that is passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.rate_limits import Share, Window, plain_share


def make_share(limit: int = 10, *, cap: int | None = None, used: int = 0, at_s: float = 0.0) -> Share:
    share = Share("key:1:r", limit)
    share.cap = limit if cap is None else cap
    if used:
        share.take(used, at_s)
    return share


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=80), st.integers(1, 20))
def test_no_sixty_seconds_hold_more_than_the_cap(steps: list[tuple[float, int]], cap: int) -> None:
    share, now_s, taken = make_share(cap=cap), 0.0, []
    for wait_s, amount in steps:
        now_s += wait_s
        if share.has_room(amount, now_s):
            share.take(amount, now_s)
            taken.append((now_s, amount))

    for end_s, _ in taken:
        assert sum(amount for at_s, amount in taken if end_s - 60 < at_s <= end_s) <= cap


def test_what_was_taken_counts_at_most_a_quarter_of_a_second_too_long() -> None:
    window = Window()
    window.add(3, 100.1)

    window.expire(160.2)
    assert window.used == 3
    window.expire(160.25)
    assert window.used == 0


def test_retry_after_is_exact() -> None:
    share = make_share(limit=2)
    share.take(1, 100.0)
    share.take(1, 130.0)

    wait_s = share.retry_after_s(1, 131.0)

    assert wait_s == 30
    assert not share.has_room(1, 131.0 + wait_s - 1)
    assert share.has_room(1, 131.0 + wait_s)


def test_retry_after_waits_for_as_much_as_is_needed() -> None:
    share = make_share(limit=10)
    for second in range(10):
        share.take(1, float(second))

    assert share.retry_after_s(1, 10.0) == 51
    assert share.retry_after_s(5, 10.0) == 55


def test_retry_after_looks_at_the_others_where_this_process_has_nothing() -> None:
    share = make_share(limit=10, cap=0)
    share.others_used, share.free_elsewhere_at_s = 10, 117.5

    assert share.retry_after_s(1, 100.0) == 18


def test_retry_after_is_a_second_where_nothing_is_known_or_only_the_lease_is_missing() -> None:
    share = make_share(limit=10, cap=0)

    assert share.retry_after_s(1, 100.0) == 1
    share.others_used = None
    assert share.retry_after_s(1, 100.0) == 1


def test_what_never_fits_waits_a_window() -> None:
    assert make_share(limit=10).retry_after_s(11, 0.0) == 60


@pytest.mark.parametrize(("actual", "used"), [(2, 2), (5, 5), (9, 9)])
def test_settling_leaves_what_was_really_taken(actual: int, used: int) -> None:
    share = make_share(limit=20, used=5, at_s=10.0)

    share.settle(5, actual, taken_at_s=10.0, now_s=12.0)

    assert share.window.used == used


def test_settling_what_has_expired_changes_nothing() -> None:
    share = make_share(limit=20, used=5, at_s=10.0)
    share.take(4, 80.0)
    share.window.expire(81.0)

    share.settle(5, 1, taken_at_s=10.0, now_s=81.0)

    assert share.window.used == 4


def test_settling_twice_never_goes_below_zero() -> None:
    share = make_share(used=5, at_s=10.0)

    share.settle(5, 0, taken_at_s=10.0, now_s=11.0)
    share.settle(5, 0, taken_at_s=10.0, now_s=11.0)

    assert share.window.used == 0


def test_over_half_of_the_cap_more_is_asked_for() -> None:
    share = make_share(limit=10)
    share.take(5, 0.0)
    assert not share.is_pressed

    share.take(1, 0.0)

    assert share.is_pressed


def test_a_refusal_says_what_it_needed_until_the_ledger_was_told() -> None:
    share = make_share(limit=10, cap=2)
    share.note_refused(4)
    share.note_refused(3)
    assert (share.need, share.is_pressed) == (4, True)

    share.clear_wishes()

    assert (share.need, share.is_pressed) == (0, False)


def test_the_rate_counts_refusals_and_halves_each_second() -> None:
    share = make_share(limit=100)
    share.take(6, 0.0)
    share.note_refused(2)

    assert share.read_rate(0.0) == 8
    assert share.read_rate(1.0) == 4


def test_advice_to_sink_does_not_go_below_what_is_used() -> None:
    share = make_share(limit=10, used=6)

    sank = share.accept(2, 1, used_before=0, now_s=1.0)

    assert (sank, share.cap, share.others_used) == (True, 6, 1)


def test_a_grant_raises_the_cap() -> None:
    share = make_share(limit=10, cap=3)

    assert not share.accept(7, 0, used_before=0, now_s=1.0)
    assert (share.cap, share.is_leased) == (7, True)


def test_what_was_used_before_a_restart_still_counts() -> None:
    share = make_share(limit=10, cap=3)

    share.accept(8, 0, used_before=7, now_s=1.0)

    assert share.window.used == 7
    assert share.has_room(1, 1.0)
    assert not share.has_room(2, 1.0)


def test_without_a_ledger_a_large_lease_sinks_to_the_share_as_it_expires() -> None:
    share = make_share(limit=30, used=25)
    share.accept(30, 0, used_before=0, now_s=1.0)

    share.hold_alone(10, 2.0)
    assert share.cap == 25
    assert not share.has_room(1, 2.0)
    share.hold_alone(10, 61.0)

    assert share.cap == 10


def test_without_a_ledger_a_small_lease_rises_only_when_the_others_have_sunk() -> None:
    share = make_share(limit=30, cap=1)
    share.accept(1, 29, used_before=0, now_s=0.0)

    share.hold_alone(10, 1.0)
    share.hold_alone(10, 62.0)
    assert share.cap == 1
    share.hold_alone(10, 63.5)

    assert share.cap == 10


def test_an_unused_limit_has_its_plain_share_without_a_ledger() -> None:
    share = make_share(limit=30)

    share.hold_alone(10, 1.0)

    assert (share.cap, share.others_used) == (10, 0)


def test_a_lease_is_forgotten_when_nobody_uses_the_limit() -> None:
    share = make_share(limit=30, used=3)
    share.hot_until_s = 70.0
    assert not share.is_idle(50.0)
    assert not share.is_idle(65.0)
    assert share.is_idle(70.0)

    share.forget_lease(10)

    assert (share.cap, share.is_leased, share.is_active) == (10, False, False)


@pytest.mark.parametrize(
    ("limit", "processes", "has_ledger", "settled", "expected"),
    [
        (10, 1, False, True, 10),
        (10, 3, True, True, 3),
        (2, 3, True, True, 0),
        (2, 3, False, True, 1),
        (120, 3, True, False, 10),
    ],
)
def test_the_plain_share(
    limit: int, processes: int, *, has_ledger: bool, settled: bool, expected: int
) -> None:
    assert plain_share(limit, processes, has_ledger=has_ledger, settled=settled) == expected
