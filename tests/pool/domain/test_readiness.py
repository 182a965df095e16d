"""How soon traffic can be back, from facts to a judgement."""

from __future__ import annotations

import pytest

from pool.domain.readiness import Applies, State, Target, in_words, judge_return

MEASURED = Applies(seconds=0.03, gateways=2)


def target(**values: object) -> Target:
    return Target(**({"number": 6, "percent": 100, "wanted": 2, "ready": 2} | values))  # type: ignore[arg-type]


def test_a_complete_release_is_back_as_soon_as_gateways_apply_the_plan() -> None:
    back = judge_return([target()], MEASURED)

    assert (back.state, back.release, back.seconds, back.reason) == (State.WARM, 6, 0.1, "")


def test_where_no_plan_was_seen_to_arrive_the_bound_stands() -> None:
    assert judge_return([target()]).seconds == 2.0


def test_a_start_under_way_needs_what_is_left_of_a_measured_one() -> None:
    back = judge_return([target(ready=1, starting_s=(20.0,), start_s=60.0, starts=3)], MEASURED)

    assert (back.state, back.seconds, back.reason) == (State.STARTING, 40.1, "1 of 2 replicas ready")


@pytest.mark.parametrize("start_s", [None, 15.0])
def test_a_start_that_nobody_measured_or_that_takes_longer_is_unknown(start_s: float | None) -> None:
    back = judge_return([target(ready=0, starting_s=(20.0,), start_s=start_s)], MEASURED)

    assert (back.state, back.seconds) == (State.STARTING, None)


def test_a_cold_release_needs_a_whole_start() -> None:
    back = judge_return([target(wanted=0, ready=0, start_s=340.0, starts=2)], MEASURED)

    assert (back.state, back.seconds) == (State.COLD, 340.1)
    assert back.reason == "weights must be loaded (measured start 5 min 40 s); none of its replicas is wished"


def test_a_cold_release_without_a_measured_start_takes_nobody_knows_how_long() -> None:
    back = judge_return([target(ready=0)], MEASURED)

    assert (back.state, back.seconds) == (State.COLD, None)
    assert back.reason == "weights must be loaded (its start was never measured)"


def test_a_part_that_is_ready_is_not_called_warm() -> None:
    back = judge_return([target(ready=1, start_s=60.0)], MEASURED)

    assert (back.state, back.reason) == (
        State.COLD, "1 of 2 replicas ready; the rest must be loaded (measured start 60 s)",
    )  # fmt: skip


def test_what_cannot_start_is_said_with_its_reason() -> None:
    back = judge_return([target(ready=0, barred="no node holds its weights")], MEASURED)

    assert (back.state, back.seconds, back.reason) == (State.IMPOSSIBLE, None, "no node holds its weights")


def test_of_several_releases_the_slowest_counts_and_is_named() -> None:
    warm = target(percent=95)
    starting = target(number=5, percent=5, ready=0, starting_s=(5.0,), start_s=30.0)

    back = judge_return([warm, starting], MEASURED)

    assert (back.state, back.release, back.seconds) == (State.STARTING, 6, 25.1)
    assert back.reason == "release 5 with 5 %: 0 of 2 replicas ready"
    unknown = target(number=4, percent=2, ready=0, starting_s=(5.0,))
    assert judge_return([warm, starting, unknown], MEASURED).seconds is None
    assert judge_return([warm, target(number=5, percent=5)], MEASURED).release == 6


def test_nowhere_to_go_back_to() -> None:
    assert judge_return([]).state is State.NOWHERE


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.1, "0.1 s"), (40.2, "40 s"), (340.0, "5 min 40 s"), (360.0, "6 min"), (7800.0, "2 h 10 min")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
