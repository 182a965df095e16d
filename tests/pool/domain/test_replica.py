from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.backoff import Failure, FailureKind, History
from pool.domain.node import NodePhase
from pool.domain.replica import (
    INTENT_WAIT,
    LONGEST_START,
    MEMORY_WAIT,
    MOVES,
    PLACEMENT_WAIT,
    QUIET_LIMIT,
    SILENT_GATEWAY_WAIT,
    STOP_GRACE,
    BeginDrain,
    Drain,
    Engine,
    Fail,
    GiveUpPlacement,
    MarkStopped,
    Phase,
    Place,
    Replace,
    ReplicaFacts,
    Report,
    Retry,
    SendStop,
    Wait,
    Wish,
    deadline_of,
    next_step,
    phase_after,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CONFIG_ERROR = Failure(FailureKind.PERMANENT, "kv_too_small", "the KV cache is too small")
OUT_OF_MEMORY = Failure(FailureKind.TRANSIENT, "out_of_memory", "out of memory")
COMING_UP = [Phase.STARTING, Phase.LOADING, Phase.WARMING]


def make(phase: Phase, **changes: Any) -> ReplicaFacts:
    placed = phase not in {Phase.PENDING, Phase.STOPPED}
    base = ReplicaFacts(phase=phase, phase_entered_at=T0, node=NodePhase.READY if placed else None)
    return replace(base, **changes)


def draining(**changes: Any) -> ReplicaFacts:
    drain = Drain(deadline_at=T0 + timedelta(minutes=1))
    facts = {"engine": Engine.RUNNING, "routed": True, "wanted": Wish.STOP, "drain": drain, **changes}
    return make(Phase.DRAINING, **facts)


def test_a_pending_replica_is_placed_when_there_is_a_place() -> None:
    assert next_step(make(Phase.PENDING, placeable=True), now=T0) == Place()


def test_a_pending_replica_without_a_place_waits_with_the_reason_of_placement() -> None:
    facts = make(Phase.PENDING, placeable=False, placement_reason="node a: 12 GiB short")

    assert next_step(facts, now=T0) == Wait("node a: 12 GiB short")


def test_a_pending_replica_that_was_never_looked_at_says_so() -> None:
    assert next_step(make(Phase.PENDING), now=T0) == Wait("placement has not been tried")


@pytest.mark.parametrize("reason", ["node a: 12 GiB short", ""])
def test_placement_is_given_up_after_its_deadline_and_tried_again(reason: str) -> None:
    facts = make(Phase.PENDING, placeable=False, placement_reason=reason)

    decision = next_step(facts, now=T0 + PLACEMENT_WAIT)

    assert isinstance(decision, GiveUpPlacement)
    assert decision.failure.message == (reason or "placement was not tried")
    assert decision.history == History()
    assert decision.retry_at is not None


def test_a_pending_replica_that_nobody_wants_stops_at_once() -> None:
    assert isinstance(next_step(make(Phase.PENDING, wanted=Wish.STOP, placeable=True), now=T0), MarkStopped)


@pytest.mark.parametrize("phase", COMING_UP)
def test_fc18_no_phase_on_the_way_up_lasts_past_its_deadline(phase: Phase) -> None:
    facts = make(phase, budget=timedelta(minutes=3))
    deadline = deadline_of(facts)
    assert deadline is not None

    assert isinstance(next_step(facts, now=deadline - SECOND), Wait)
    decision = next_step(facts, now=deadline)

    assert isinstance(decision, Fail)
    assert decision.failure.code == f"{phase}_overdue"
    assert decision.retry_at is not None


def test_fc17_signs_of_progress_extend_the_start_but_not_for_ever() -> None:
    facts = make(Phase.LOADING, budget=timedelta(minutes=3))
    slow = replace(facts, progress_at=T0 + timedelta(minutes=30))
    endless = replace(facts, progress_at=T0 + LONGEST_START)

    assert deadline_of(slow) == T0 + timedelta(minutes=30) + QUIET_LIMIT
    assert deadline_of(endless) == T0 + LONGEST_START


def test_a_budget_longer_than_the_usual_limit_is_honoured() -> None:
    facts = make(Phase.LOADING, budget=LONGEST_START * 2)

    assert deadline_of(facts) == T0 + LONGEST_START * 2


def test_starting_ignores_the_load_budget() -> None:
    assert deadline_of(make(Phase.STARTING, budget=timedelta(hours=1))) == T0 + INTENT_WAIT


def test_fc17_the_third_failed_start_is_the_last() -> None:
    facts = make(Phase.LOADING, failure=OUT_OF_MEMORY, history=History(failed_starts=2))

    decision = next_step(facts, now=T0)

    assert decision == Fail(OUT_OF_MEMORY, History(failed_starts=3), None)


def test_fc33_a_permanent_failure_is_never_retried() -> None:
    decision = next_step(make(Phase.LOADING, failure=CONFIG_ERROR), now=T0)

    assert isinstance(decision, Fail)
    assert decision.retry_at is None


@pytest.mark.parametrize("engine", [Engine.ENDED, Engine.GONE])
@pytest.mark.parametrize("phase", [*COMING_UP, Phase.READY])
def test_fc18_an_exited_process_never_shows_a_living_phase(phase: Phase, engine: Engine) -> None:
    decision = next_step(make(phase, engine=engine), now=T0)

    assert isinstance(decision, Fail)
    assert decision.failure.code == "engine_died"


def test_a_crash_after_ready_is_restarted_at_once() -> None:
    now = T0 + timedelta(minutes=5)

    decision = next_step(make(Phase.READY, engine=Engine.ENDED), now=now)

    assert isinstance(decision, Fail)
    assert decision.retry_at == now


def test_fc01_a_hang_that_the_node_reports_fails_the_replica() -> None:
    hung = Failure(FailureKind.TRANSIENT, "hung", "no token for 30 s while requests wait")

    decision = next_step(make(Phase.READY, engine=Engine.RUNNING, failure=hung), now=T0)

    assert isinstance(decision, Fail)
    assert decision.failure == hung


@pytest.mark.parametrize("phase", [*COMING_UP, Phase.READY])
@pytest.mark.parametrize(
    "changes", [{"wanted": Wish.STOP}, {"restart_asked": True}, {"node": NodePhase.DRAINING}]
)
def test_a_replica_that_must_leave_drains(phase: Phase, changes: dict[str, Any]) -> None:
    assert isinstance(next_step(make(phase, **changes), now=T0), BeginDrain)


@pytest.mark.parametrize("node", [NodePhase.READY, NodePhase.CORDONED])
def test_a_ready_replica_stays(node: NodePhase) -> None:
    assert next_step(make(Phase.READY, node=node, engine=Engine.RUNNING), now=T0) == Wait("ready")


def test_fc04_a_ready_replica_on_an_unreachable_node_is_left_alone() -> None:
    facts = make(Phase.READY, node=NodePhase.UNREACHABLE, engine=Engine.RUNNING)

    assert isinstance(next_step(facts, now=T0 + timedelta(hours=1)), Wait)


def test_a_start_on_an_unreachable_node_is_not_judged() -> None:
    facts = make(Phase.LOADING, node=NodePhase.UNREACHABLE)

    assert isinstance(next_step(facts, now=T0 + timedelta(hours=1)), Wait)


@pytest.mark.parametrize("phase", [*COMING_UP, Phase.READY, Phase.DRAINING, Phase.FAILED])
def test_fc04_a_replica_of_a_replaced_node_gets_a_new_place(phase: Phase) -> None:
    lost = make(phase, node=NodePhase.REPLACED)

    assert isinstance(next_step(lost, now=T0), Replace)
    assert isinstance(next_step(replace(lost, wanted=Wish.STOP), now=T0), MarkStopped)


def test_draining_waits_for_every_gateway_first() -> None:
    decision = next_step(draining(), now=T0)

    assert decision == Wait("unrouted; waiting for gateways that are slow to acknowledge")


@pytest.mark.parametrize(("in_flight", "words"), [(2, "2"), (None, "unknown")])
def test_draining_waits_for_requests_in_flight(in_flight: int | None, words: str) -> None:
    facts = draining(drain=Drain(deadline_at=T0 + SECOND, acknowledged=True, in_flight=in_flight))

    assert next_step(facts, now=T0) == Wait(f"{words} requests in flight")
    assert isinstance(next_step(facts, now=T0 + SECOND), SendStop)


def test_an_idle_drained_replica_is_stopped_gently() -> None:
    decision = next_step(draining(drain=Drain(acknowledged=True, in_flight=0)), now=T0)

    assert isinstance(decision, SendStop)
    assert not decision.force


def test_with_a_silent_gateway_the_deadline_and_an_idle_engine_are_needed() -> None:
    silent = Drain(deadline_at=T0 + SECOND, silent_gateways=("g1",), in_flight=0)
    busy, idle = draining(drain=silent), draining(drain=replace(silent, engine_idle=True))

    assert isinstance(next_step(idle, now=T0), Wait)
    assert isinstance(next_step(idle, now=T0 + SECOND), SendStop)
    assert isinstance(next_step(busy, now=T0 + SECOND), Wait)
    assert isinstance(next_step(busy, now=T0 + SECOND + SILENT_GATEWAY_WAIT), SendStop)


def test_a_replica_that_was_never_routed_is_stopped_at_once() -> None:
    decision = next_step(draining(routed=False), now=T0)

    assert isinstance(decision, SendStop)
    assert decision.force


def test_an_engine_that_ends_while_draining_is_cleared_up_then_stopped() -> None:
    assert isinstance(next_step(draining(engine=Engine.ENDED), now=T0), SendStop)
    assert isinstance(next_step(draining(engine=Engine.GONE), now=T0), MarkStopped)


def test_a_stop_that_takes_too_long_is_forced_once() -> None:
    sent = draining(stop_sent_at=T0)

    assert next_step(sent, now=T0) == Wait("stopping")
    assert isinstance(next_step(sent, now=T0 + STOP_GRACE), SendStop)
    assert isinstance(next_step(replace(sent, stop_forced=True), now=T0 + STOP_GRACE), Wait)


def test_fc03_stopped_means_that_the_memory_is_back_or_is_not_ours() -> None:
    ended = draining(stop_sent_at=T0, engine=Engine.ENDED)

    assert isinstance(next_step(ended, now=T0), Wait)
    assert isinstance(next_step(ended, now=T0 + MEMORY_WAIT), MarkStopped)


def test_fc03_a_failed_replica_is_cleared_up_before_the_next_try() -> None:
    facts = make(Phase.FAILED, failure=OUT_OF_MEMORY, engine=Engine.RUNNING, next_retry_at=T0)
    sent = replace(facts, stop_sent_at=T0, stop_forced=True)
    ended = replace(sent, engine=Engine.ENDED)

    assert isinstance(next_step(facts, now=T0), SendStop)
    assert isinstance(next_step(replace(sent, stop_forced=False), now=T0), SendStop)
    assert isinstance(next_step(sent, now=T0), Wait)
    assert isinstance(next_step(ended, now=T0), Wait)
    assert isinstance(next_step(ended, now=T0 + MEMORY_WAIT), Retry)
    assert isinstance(next_step(replace(sent, engine=Engine.GONE), now=T0), Retry)


def test_a_failed_replica_backs_off() -> None:
    facts = make(Phase.FAILED, failure=OUT_OF_MEMORY, engine=Engine.GONE, next_retry_at=T0 + SECOND)

    assert isinstance(next_step(facts, now=T0), Wait)
    assert isinstance(next_step(facts, now=T0 + SECOND), Retry)


def test_a_given_up_replica_waits_for_an_operator() -> None:
    facts = make(Phase.FAILED, failure=CONFIG_ERROR, engine=Engine.GONE)

    assert isinstance(next_step(facts, now=T0 + timedelta(days=1)), Wait)
    assert isinstance(next_step(replace(facts, restart_asked=True), now=T0), Retry)
    assert isinstance(next_step(replace(facts, wanted=Wish.STOP), now=T0), MarkStopped)


def test_an_unplaced_replica_starts_as_soon_as_there_is_a_place() -> None:
    unplaced = Failure(FailureKind.UNPLACED, "no_place", "no room")
    facts = make(Phase.FAILED, node=None, failure=unplaced, placeable=True, next_retry_at=T0 + SECOND)

    assert isinstance(next_step(facts, now=T0), Retry)
    assert isinstance(next_step(replace(facts, placeable=False), now=T0), Wait)


def test_a_stopped_replica_starts_again_only_when_wanted() -> None:
    assert isinstance(next_step(make(Phase.STOPPED), now=T0), Retry)
    assert next_step(make(Phase.STOPPED, wanted=Wish.STOP), now=T0) == Wait("stopped")


@pytest.mark.parametrize(
    ("phase", "deadline"),
    [
        (Phase.PENDING, T0 + PLACEMENT_WAIT),
        (Phase.DRAINING, T0 + SECOND),
        (Phase.FAILED, T0 + SECOND * 2),
        (Phase.READY, None),
        (Phase.STOPPED, None),
    ],
)
def test_deadlines_of_the_other_phases(phase: Phase, deadline: datetime | None) -> None:
    facts = make(phase, drain=Drain(deadline_at=T0 + SECOND), next_retry_at=T0 + SECOND * 2)

    assert deadline_of(facts) == deadline


def test_reports_move_a_replica_up_and_late_ones_change_nothing() -> None:
    assert phase_after(Phase.STARTING, Report.PROCESS_STARTED) is Phase.LOADING
    assert phase_after(Phase.LOADING, Report.ENGINE_ANSWERS) is Phase.WARMING
    assert phase_after(Phase.WARMING, Report.WARMED_UP) is Phase.READY
    assert phase_after(Phase.DRAINING, Report.WARMED_UP) is None


TARGETS: dict[type, Phase] = {
    Place: Phase.STARTING,
    GiveUpPlacement: Phase.FAILED,
    Fail: Phase.FAILED,
    Retry: Phase.PENDING,
    Replace: Phase.PENDING,
    BeginDrain: Phase.DRAINING,
    MarkStopped: Phase.STOPPED,
}
optional_seconds = st.one_of(st.none(), st.integers(0, 10_000).map(lambda s: T0 + s * SECOND))
any_facts = st.builds(
    ReplicaFacts,
    phase=st.sampled_from(Phase),
    phase_entered_at=st.just(T0),
    wanted=st.sampled_from(Wish),
    restart_asked=st.booleans(),
    placeable=st.sampled_from([None, True, False]),
    node=st.sampled_from([None, *NodePhase]),
    engine=st.sampled_from(Engine),
    failure=st.sampled_from([None, CONFIG_ERROR, OUT_OF_MEMORY]),
    next_retry_at=optional_seconds,
    routed=st.booleans(),
    progress_at=optional_seconds,
    stop_sent_at=optional_seconds,
    stop_forced=st.booleans(),
    drain=st.builds(Drain, deadline_at=optional_seconds, acknowledged=st.booleans(), in_flight=st.just(None)),
)


@given(any_facts, st.integers(0, 10_000))
def test_every_decision_is_a_move_that_the_table_allows(facts: ReplicaFacts, seconds: int) -> None:
    decision = next_step(facts, now=T0 + seconds * SECOND)

    target = TARGETS.get(type(decision))
    assert target is None or target in MOVES[facts.phase]
    assert next_step(facts, now=T0 + seconds * SECOND) == decision
