from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.rollout import (
    FINAL,
    LIMITS,
    MOVES,
    OWNERS,
    Enter,
    Facts,
    Judgement,
    Phase,
    RollBack,
    State,
    Step,
    Wait,
    decide,
    guard,
    has_weight,
)
from pool.domain.rollout_plans import Split, largest_weight, mix, split_of_rollback, split_of_step

T0 = datetime(2026, 11, 1, 12, tzinfo=UTC)
STEPS = (Step(10, soak_s=60, min_requests=100), Step(50, soak_s=60, min_requests=100))
GOOD = Facts(
    now=T0 + timedelta(hours=1),
    replicas_exist=True,
    loaded=True,
    ready=True,
    golden=Judgement.NOT_WORSE,
    judgement=Judgement.NOT_WORSE,
    requests={"short": 500},
    lanes_in_use=frozenset({"short"}),
    acknowledged=True,
    drained=True,
)


def state(phase: Phase, **values: object) -> State:
    step = 0 if phase in (Phase.STEPPING, Phase.HOLDING, Phase.ROLLING_BACK, Phase.PAUSED) else -1
    fields = {"step": step, "entered_at": T0, "steps": STEPS, "hold_s": 1800, "weighted": step >= 0}
    return State(phase=phase, **(fields | values))  # type: ignore[arg-type]


def test_with_all_well_it_goes_from_start_to_promotion_step_by_step() -> None:
    now = state(Phase.PLANNED)
    seen = []
    while now.phase not in FINAL:
        action = decide(now, GOOD)
        assert isinstance(action, Enter)
        assert action.phase in MOVES[now.phase]
        step = now.step if action.step is None else min(action.step, len(STEPS) - 1)
        now = replace(now, phase=action.phase, step=step, weighted=now.weighted or action.step is not None)
        seen.append((action.phase, action.step))

    assert seen == [
        (Phase.PREPARING, None),
        (Phase.WARMING, None),
        (Phase.STEPPING, 0),
        (Phase.STEPPING, 1),
        (Phase.HOLDING, 2),
        (Phase.PROMOTED, None),
    ]


@pytest.mark.parametrize(
    ("phase", "resumes"),
    [
        (Phase.STEPPING, None),
        (Phase.HOLDING, None),
        (Phase.PAUSED, Phase.STEPPING),
        (Phase.PAUSED, Phase.HOLDING),
    ],
)
@pytest.mark.parametrize(
    ("harm", "code"),
    [
        ({"judgement": Judgement.WORSE, "judgement_text": "ttft"}, "worse"),
        ({"broken_limit": "errors above 5 %"}, "limit_broken"),
        ({"golden": Judgement.WORSE, "golden_text": "babble"}, "golden_prompts"),
    ],
)
def test_fc44_harm_is_taken_back_in_every_phase_with_weight(
    phase: Phase, resumes: Phase | None, harm: dict[str, object], code: str
) -> None:
    action = decide(state(phase, resumes=resumes), replace(GOOD, **harm))  # type: ignore[arg-type]

    assert isinstance(action, RollBack)
    assert action.code == code


@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.PREPARING, Phase.WARMING])
def test_nothing_is_taken_back_where_nothing_was_given(phase: Phase) -> None:
    assert guard(state(phase), replace(GOOD, judgement=Judgement.WORSE, broken_limit="x")) is None


def test_fc11_without_traffic_nothing_moves_however_long_it_takes() -> None:
    for phase in (Phase.STEPPING, Phase.HOLDING):
        late = replace(
            GOOD,
            requests={},
            lanes_in_use=frozenset(),
            judgement=Judgement.NOT_YET,
            now=T0 + timedelta(days=30),
        )
        action = decide(state(phase), late)
        assert isinstance(action, Wait)
        assert "nothing" in action.next_action


def test_fc11_no_verdict_never_passes_a_step() -> None:
    action = decide(state(Phase.STEPPING), replace(GOOD, judgement=Judgement.NOT_YET))

    assert isinstance(action, Wait)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ({"now": T0 + timedelta(seconds=59)}, "soaking"),
        ({"requests": {"short": 99}}, "short 99 of 100"),
        ({"golden": Judgement.NOT_YET}, "golden"),
        ({"lacks_capacity": "short carries 20 %"}, "carries 20 %"),
        ({"in_force": False}, "another plan"),
    ],
)
def test_a_step_waits_and_says_for_what(missing: dict[str, object], words: str) -> None:
    action = decide(state(Phase.STEPPING), replace(GOOD, **missing))  # type: ignore[arg-type]

    assert isinstance(action, Wait)
    assert words in action.next_action


def test_a_lane_of_the_step_alone_is_counted() -> None:
    steps = (Step(10, soak_s=0, min_requests=100, lanes=("short",)),)
    facts = replace(GOOD, requests={"short": 100}, lanes_in_use=frozenset({"short", "long"}))

    assert isinstance(decide(state(Phase.STEPPING, steps=steps), facts), Enter)


def test_fc09_no_weight_before_every_replica_is_ready() -> None:
    action = decide(state(Phase.WARMING), replace(GOOD, ready=False, now=T0))

    assert isinstance(action, Wait)


@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.PREPARING, Phase.WARMING])
def test_fc18_what_never_gets_ready_fails_after_its_deadline(phase: Phase) -> None:
    stuck = replace(GOOD, replicas_exist=False, loaded=phase is Phase.WARMING, ready=False)

    before = decide(state(phase), replace(stuck, now=T0 + LIMITS[phase] - timedelta(seconds=1)))
    after = decide(state(phase), replace(stuck, now=T0 + LIMITS[phase]))

    assert isinstance(before, Wait)
    assert isinstance(after, Enter)
    assert (after.phase, after.code) == (Phase.FAILED, "deadline")


def test_promote_goes_to_full_weight_without_its_gates_but_not_without_capacity() -> None:
    asked = state(Phase.STEPPING, promote_asked=True)
    unsure = replace(GOOD, judgement=Judgement.NOT_YET, requests={})

    action = decide(asked, unsure)
    assert isinstance(action, Enter)
    assert (action.phase, action.step) == (Phase.HOLDING, len(STEPS))
    assert isinstance(decide(asked, replace(unsure, lacks_capacity="no")), Wait)


def test_fc10_a_rollback_follows_what_stable_carries_and_never_goes_down() -> None:
    rolling = state(Phase.ROLLING_BACK)

    partly = replace(GOOD, stable_percent=50, given_back_percent=25)
    assert isinstance(decide(rolling, replace(partly, stable_grew=True)), RollBack)
    assert isinstance(decide(rolling, partly), Wait)


def test_a_silent_gateway_is_named_and_nothing_is_called_complete() -> None:
    facts = replace(GOOD, acknowledged=False, silent=("gw-2",), now=T0 + timedelta(days=1))

    action = decide(state(Phase.ROLLING_BACK), facts)

    assert isinstance(action, Wait)
    assert "gw-2" in action.next_action


def test_a_rollback_is_complete_when_all_serve_it_and_nothing_runs() -> None:
    assert isinstance(decide(state(Phase.ROLLING_BACK), replace(GOOD, drained=False)), Wait)
    action = decide(state(Phase.ROLLING_BACK), GOOD)
    assert isinstance(action, Enter)
    assert action.phase is Phase.ROLLED_BACK


FACTS = st.builds(
    Facts,
    now=st.integers(0, 10**6).map(lambda seconds: T0 + timedelta(seconds=seconds)),
    replicas_exist=st.booleans(),
    loaded=st.booleans(),
    ready=st.booleans(),
    failed=st.sampled_from(["", "broken"]),
    golden=st.sampled_from(Judgement),
    judgement=st.sampled_from(Judgement),
    broken_limit=st.sampled_from(["", "errors"]),
    lacks_capacity=st.sampled_from(["", "capacity"]),
    requests=st.dictionaries(st.sampled_from(["short", "long"]), st.integers(0, 300)),
    lanes_in_use=st.frozensets(st.sampled_from(["short", "long"])),
    in_force=st.booleans(),
    acknowledged=st.booleans(),
    silent=st.sampled_from([(), ("gw-1",)]),
    drained=st.booleans(),
    stable_percent=st.integers(0, 100),
    given_back_percent=st.integers(0, 100),
)


@given(st.sampled_from(Phase), FACTS, st.integers(-1, 1), st.booleans())
def test_every_move_is_in_the_table_and_final_phases_stay(
    phase: Phase, facts: Facts, step: int, promote: bool
) -> None:
    now = state(phase, step=max(step, 0) if has_weight(state(phase)) else step, promote_asked=promote)

    action = decide(now, facts)

    if isinstance(action, Enter):
        assert action.phase in MOVES[phase]
        assert action.step is None or action.phase in (Phase.STEPPING, Phase.HOLDING)
        assert action.text
    elif isinstance(action, RollBack):
        assert Phase.ROLLING_BACK in MOVES[phase]
    if phase in FINAL:
        assert action == Wait("")


def test_every_phase_has_an_owner_and_all_but_two_a_limit() -> None:
    assert set(OWNERS) == set(MOVES) == set(Phase)
    assert set(Phase) - FINAL - set(LIMITS) == {Phase.HOLDING, Phase.PAUSED}


WEIGHTS = st.dictionaries(st.integers(1, 5), st.integers(0, 100), min_size=1)


@given(WEIGHTS, st.integers(1, 6), st.integers(0, 100))
def test_fc45_mixed_weights_are_whole_and_sum_to_a_hundred(
    base: dict[int, int], candidate: int, percent: int
) -> None:
    mixed = mix(base, candidate, percent)

    assert sum(mixed.values()) == 100
    assert all(0 <= weight <= 100 for weight in mixed.values())
    if any(weight for number, weight in base.items() if number != candidate):
        assert mixed[candidate] == percent


def test_lanes_go_one_after_the_other_and_keep_what_they_have() -> None:
    base = Split({1: 100}, {})
    steps = (Step(10, lanes=("short",)), Step(100, lanes=("short",)), Step(10, lanes=("long",)))

    first = split_of_step(base, 2, steps, 0, ("short", "long"))
    third = split_of_step(base, 2, steps, 2, ("short", "long"))

    assert first == Split({1: 100, 2: 0}, {"short": {1: 90, 2: 10}, "long": {1: 100, 2: 0}})
    assert third.lanes == {"short": {1: 0, 2: 100}, "long": {1: 90, 2: 10}}
    assert split_of_step(base, 2, steps, 3, ("short", "long")) == Split({1: 0, 2: 100}, {})


def test_fc10_a_rollback_to_a_part_of_stable_leaves_the_candidate_the_rest() -> None:
    base = Split({1: 70, 3: 30}, {"long": {1: 100}})
    now = Split({1: 0, 3: 0, 2: 100}, {})
    lanes = ("short", "long")

    assert split_of_rollback(base, now, 2, {"": 100}, lanes) == base
    half = split_of_rollback(base, now, 2, {"": 50}, lanes)
    assert half == Split({1: 35, 3: 15, 2: 50}, {"long": {1: 50, 2: 50}})
    assert largest_weight(half, 2) == 50


def test_fc10_a_rollback_never_raises_what_the_candidate_has() -> None:
    base, now = Split({1: 100}, {}), Split({1: 90, 2: 10}, {})

    assert split_of_rollback(base, now, 2, {"": 0}, ("short",)) == now
    assert split_of_rollback(base, now, 2, {"": 95}, ("short",)) == Split({1: 95, 2: 5}, {})


def test_fc10_a_lane_without_stable_replicas_holds_no_other_lane_up() -> None:
    base, now = Split({1: 100}, {}), Split({1: 40, 2: 60}, {})

    back = split_of_rollback(base, now, 2, {"short": 100, "long": 0}, ("short", "long"))

    assert back.lanes["short"] == {1: 100, 2: 0}
    assert back.lanes.get("long", back.weights) == {1: 40, 2: 60}
