"""Levels with separate limits to enter and leave, holds, cool-downs, and what missing data does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.alerting import GIVE_UP_AFTER, AlertState, Change, Level, Limits, Reading, next_state

NOW = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=10)
LIMITS = Limits({Level.YELLOW: 1.8, Level.ORANGE: 2.5, Level.RED: 3.0})
AT_ONCE = Limits(LIMITS.enter, enter_hold=timedelta(), exit_hold=timedelta(), cool_down=timedelta())
NO_DATA = Reading(None, 0, "absent")


def run(
    values: Iterable[float | None],
    *,
    limits: Limits = LIMITS,
    state: AlertState | None = None,
    restart_at: int = -1,
) -> tuple[AlertState, list[Change], datetime]:
    """One value each ten seconds; None = no data. `restart_at`: before that value, only the stored form is left."""
    state, changes, now = state or AlertState(), [], NOW
    for number, value in enumerate(values):
        if number == restart_at:
            state = AlertState.from_json(state.to_json())
        reading = NO_DATA if value is None else Reading(value, 500)
        state, change = next_state(state, reading, limits, now=now)
        changes += [change] if change is not None else []
        now += STEP
    return state, changes, now


@pytest.mark.parametrize("restart_at", [-1, 2, 3, 31, 59])
def test_fc59_a_value_that_swings_around_its_limit_fires_once(restart_at: int) -> None:
    values = [0.980, 1.010, 0.990, 1.020] * 15
    limits = Limits({Level.ORANGE: 1.0})

    _, changes, _ = run(values, limits=limits, restart_at=restart_at)

    fired = [change for change in changes if change.after > change.before]
    cleared = [change for change in changes if change.after < change.before]
    assert (len(fired), len(cleared)) == (1, 0)


def test_a_short_peak_fires_nothing() -> None:
    assert run([1.0, 2.6, 2.6, 1.0, 2.6, 2.6, 1.0])[1] == []


def test_levels_are_entered_when_held_and_left_one_after_the_other() -> None:
    up, down = [3.5] * 4, [2.3] * 13 + [2.0] * 13 + [1.0] * 13

    state, changes, _ = run(up + down)

    assert [change.after for change in changes] == [Level.RED, Level.ORANGE, Level.YELLOW, Level.NORMAL]
    assert state.level is Level.NORMAL


def test_the_exit_lies_a_tenth_below() -> None:
    held, _, _ = run([2.6] * 4)

    assert run([2.26] * 60, state=held)[0].level is Level.ORANGE
    assert run([2.24] * 60, state=held)[0].level is Level.YELLOW


def test_a_level_that_was_left_cools_down_but_a_higher_one_does_not_wait() -> None:
    left, _, _ = run([1.9] * 4 + [1.0] * 13)

    assert run([1.9] * 6, state=left)[0].level is Level.NORMAL
    assert run([1.9] * 60, state=left)[0].level is Level.YELLOW
    assert run([2.6] * 6, state=left)[0].level is Level.ORANGE


def test_no_data_neither_raises_nor_clears() -> None:
    orange, _, _ = run([2.6] * 4)

    assert run([None] * 100, state=orange)[0].level is Level.ORANGE
    assert run([None] * 100)[1] == []


@pytest.mark.parametrize("state", ["few", "stale", "absent"])
def test_what_was_not_measured_well_is_no_reading(state: str) -> None:
    found, change = next_state(AlertState(), Reading(9.9, 3, state), AT_ONCE, now=NOW)

    assert change is None
    assert found.level is Level.NORMAL


def test_a_gap_breaks_a_hold() -> None:
    assert run([2.6, 2.6, None, 2.6, 2.6, None] * 5)[1] == []
    orange, _, _ = run([2.6] * 4)
    assert run([1.0] * 10 + [None] + [1.0] * 10, state=orange)[1] == []


def test_after_an_hour_without_data_it_ends_and_says_so() -> None:
    orange, _, _ = run([2.6] * 4)
    silent, _ = next_state(orange, NO_DATA, LIMITS, now=NOW)

    state, change = next_state(silent, NO_DATA, LIMITS, now=NOW + GIVE_UP_AFTER)

    assert change == Change(Level.ORANGE, Level.NORMAL, "no_data")
    assert state.level is Level.NORMAL


def test_limits_in_points_leave_in_points() -> None:
    marks = Limits({Level.YELLOW: 0.70}, exit_below_ratio=0.0, exit_below=0.05, enter_hold=timedelta())
    held, _, _ = run([0.71], limits=marks)

    assert run([0.66] * 60, limits=marks, state=held)[0].level is Level.YELLOW
    assert run([0.64] * 60, limits=marks, state=held)[0].level is Level.NORMAL


def test_each_level_may_have_a_value_of_its_own() -> None:
    limits = Limits({Level.YELLOW: 1.0, Level.RED: 14.4}, enter_hold=timedelta())
    reading = Reading(20.0, 500, by_level={Level.RED: 3.0, Level.YELLOW: 1.5})

    state, _ = next_state(AlertState(), reading, limits, now=NOW)

    assert state.level is Level.YELLOW


def test_a_level_without_a_value_is_kept() -> None:
    limits = Limits({Level.YELLOW: 1.0, Level.RED: 14.4}, enter_hold=timedelta(), exit_hold=timedelta())
    red, _ = next_state(AlertState(), Reading(20.0, 500), limits, now=NOW)

    state, change = next_state(red, Reading(0.1, 500, by_level={Level.YELLOW: 0.1}), limits, now=NOW + STEP)

    assert change is None
    assert state.level is Level.RED


def test_a_level_that_the_limits_lost_is_left() -> None:
    red, _, _ = run([3.5] * 4)

    state, _, _ = run([2.0] * 13, limits=Limits({Level.YELLOW: 1.8}), state=red)

    assert state.level is Level.YELLOW


values_of_a_day = st.lists(st.one_of(st.none(), st.floats(0, 5)), max_size=200)


@given(values_of_a_day, st.integers(0, 200))
def test_a_restart_changes_nothing(values: Sequence[float | None], restart_at: int) -> None:
    assert run(values)[:2] == run(values, restart_at=restart_at)[:2]


@given(st.lists(st.floats(0, 5), min_size=60, max_size=60))
def test_within_ten_minutes_a_level_is_entered_at_most_twice(values: Sequence[float]) -> None:
    _, changes, _ = run(values)

    for level in LIMITS.enter:
        entered = [change for change in changes if change.before < level <= change.after]
        assert len(entered) <= 2


@given(values_of_a_day)
def test_it_never_rises_without_a_value_over_the_limit(values: Sequence[float | None]) -> None:
    state = AlertState()
    for number, value in enumerate(values):
        reading = NO_DATA if value is None else Reading(value, 500)
        state, change = next_state(state, reading, LIMITS, now=NOW + number * STEP)
        if change is not None and change.after > change.before:
            assert value is not None
            assert value >= LIMITS.exit_of(change.after)


@given(values_of_a_day, st.floats(0, 1.6))
def test_a_value_that_stays_low_ends_in_normal(values: Sequence[float | None], low: float) -> None:
    state, _, _ = run([*values, *[low] * 60])

    assert state.level is Level.NORMAL
