"""Which actions begin, go on and end, how often, and what blocks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.domain.alerting import Level
from pool.domain.ladder import LASTS, Blocked, Claim, Decision, Past, Policy, Step, decide_actions

NOW = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = Policy({Level.ORANGE: (Step.SHED_BATCH,), Level.RED: (Step.NO_LONG, Step.ADMISSION_RATIO)})


def decide(
    level: Level,
    *past: Past,
    policy: Policy = POLICY,
    is_measured: bool = True,
    now: datetime = NOW,
    others: Sequence[Claim] = (),
) -> Decision:
    return decide_actions([Claim(level, policy, is_measured), *others], past, now=now)


def begun(step: Step, *, ago: timedelta, ended_ago: timedelta | None = None) -> Past:
    return Past(step, NOW - ago, NOW - ago + LASTS, None if ended_ago is None else NOW - ended_ago)


@pytest.mark.parametrize("level", [Level.NORMAL, Level.PLAN, Level.YELLOW])
def test_below_orange_nothing_is_done(level: Level) -> None:
    assert decide(level) == Decision()


def test_a_level_holds_what_the_lower_ones_hold() -> None:
    assert decide(Level.ORANGE).begin == (Step.SHED_BATCH,)
    assert decide(Level.RED).begin == (Step.SHED_BATCH, Step.NO_LONG, Step.ADMISSION_RATIO)


def test_what_holds_is_prolonged_before_it_runs_out() -> None:
    fresh, old = begun(Step.SHED_BATCH, ago=MINUTE), begun(Step.SHED_BATCH, ago=4 * MINUTE)

    assert decide(Level.ORANGE, fresh) == Decision()
    assert decide(Level.ORANGE, old).renew == (Step.SHED_BATCH,)


def test_without_data_nothing_begins_goes_on_or_is_taken_back() -> None:
    old = begun(Step.SHED_BATCH, ago=4 * MINUTE)

    assert decide(Level.RED, old, is_measured=False) == Decision()


def test_recovery_takes_back_but_not_at_once() -> None:
    assert decide(Level.YELLOW, begun(Step.SHED_BATCH, ago=MINUTE)) == Decision()
    assert decide(Level.YELLOW, begun(Step.SHED_BATCH, ago=6 * MINUTE)).end == (Step.SHED_BATCH,)


def test_what_was_taken_back_is_not_begun_again_for_a_while() -> None:
    back = begun(Step.SHED_BATCH, ago=10 * MINUTE, ended_ago=2 * MINUTE)

    decision = decide(Level.ORANGE, back)

    assert decision.begin == ()
    assert decision.blocked == (Blocked(Step.SHED_BATCH, "taken_back_lately"),)


def test_an_hour_has_only_so_many_actions() -> None:
    past = [begun(Step.SHED_BATCH, ago=number * 8 * MINUTE, ended_ago=6 * MINUTE) for number in range(1, 7)]

    decision = decide(Level.RED, *past)

    assert decision.begin == ()
    assert {blocked.reason for blocked in decision.blocked} == {"too_many"}


def test_a_hold_freezes_the_lane() -> None:
    held = replace(POLICY, held_until=NOW + MINUTE)
    old = begun(Step.SHED_BATCH, ago=6 * MINUTE)

    assert decide(Level.RED, old, policy=held).blocked[0] == Blocked(Step.NO_LONG, "held")
    assert decide(Level.NORMAL, old, policy=held).end == ()
    assert decide(Level.RED, policy=replace(held, held_until=NOW)).begin != ()


def test_steps_that_nobody_carries_out_yet_say_so() -> None:
    policy = Policy({Level.ORANGE: (Step.SCALE_OUT,), Level.RED: (Step.ROLL_BACK,)})

    assert decide(Level.RED, policy=policy).blocked == (
        Blocked(Step.SCALE_OUT, "not_available"),
        Blocked(Step.ROLL_BACK, "not_available"),
    )


def test_what_one_alert_still_asks_for_the_other_does_not_take_back() -> None:
    old = begun(Step.SHED_BATCH, ago=6 * MINUTE)
    silent = Claim(Level.ORANGE, POLICY, is_measured=False)
    loud = Claim(Level.ORANGE, POLICY, is_measured=True)

    assert decide(Level.NORMAL, old, others=[silent]) == Decision()
    assert decide(Level.NORMAL, old, others=[loud]).renew == (Step.SHED_BATCH,)


def test_without_a_claim_what_is_left_is_taken_back() -> None:
    assert decide_actions([], [begun(Step.SHED_BATCH, ago=MINUTE)], now=NOW).end == (Step.SHED_BATCH,)


@settings(max_examples=25)
@given(st.lists(st.sampled_from([Level.NORMAL, Level.ORANGE, Level.RED]), min_size=360, max_size=360))
def test_however_levels_swing_an_hour_sees_no_more_actions_than_allowed(levels: Sequence[Level]) -> None:
    policy, begins = replace(POLICY, max_per_hour=4), 0
    past: list[Past] = []
    for number, level in enumerate(levels):
        now = NOW + number * timedelta(seconds=10)
        past = [one if one.ended_at or one.until > now else replace(one, ended_at=one.until) for one in past]
        decision = decide_actions([Claim(level, policy, is_measured=True)], past, now=now)
        past = [
            replace(one, ended_at=now) if one.step in decision.end and one.ended_at is None
            else replace(one, until=now + LASTS) if one.step in decision.renew and one.ended_at is None
            else one
            for one in past
        ]  # fmt: skip
        past += [Past(step, now, now + LASTS) for step in decision.begin]
        begins += len(decision.begin)

    assert begins <= 4
