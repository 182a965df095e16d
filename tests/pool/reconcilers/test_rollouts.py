"""Rollouts from start to end on the database, passes by hand; engines and gateways are rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.rollout import Phase, Step
from pool.models import (
    AuditEntry,
    GatewayInstance,
    Notice,
    Plan,
    Replica,
    Rollout,
    RolloutEvent,
    RoutingState,
    Scale,
    Webhook,
)
from pool.queries.rollouts import load_proof
from pool.reconcilers import rollouts as loop
from pool.services import rollout_moves
from pool.services.audit import Actor
from pool.services.catalog import set_scale
from pool.services.errors import Conflict, Invalid
from pool.services.lanes import LaneWish, set_lanes
from pool.services.plans import PlanWish, set_plan
from pool.services.rollback import roll_back_model
from pool.services.rollouts import RolloutWish, fence, pause, promote, resume, roll_back, start_rollout
from pool.telemetry.store import add_cells
from tests.factories import (
    T0,
    make_gateway,
    make_model,
    make_plan,
    make_release,
    make_replica,
    make_routing_state,
    make_sim_node,
)

pytestmark = pytest.mark.django_db
OLGA = Actor("olga", "api")
STEPS = (Step(10, soak_s=10, min_requests=5), Step(50, soak_s=10, min_requests=5))
WISH = RolloutWish(candidate=2, steps=STEPS, hold_s=60)


class World:
    """Releases 1 (stable, ready) and 2, one gateway, and a clock that goes on by hand."""

    def __init__(self) -> None:
        make_routing_state()
        self.model = make_model("smollm2")
        self.node = make_sim_node("node-a")
        self.stable = make_release(self.model, number=1)
        self.candidate = make_release(self.model, number=2, replicas=0)
        make_replica(self.stable, node=self.node, id="stable-1", routed=True)
        make_plan(self.model)
        make_gateway("gw-1")
        self.now = T0
        self.acknowledge()

    @property
    def rollout(self) -> Rollout:
        return Rollout.objects.get()

    def start(self, wish: RolloutWish = WISH) -> Rollout:
        return start_rollout("smollm2", wish, actor=OLGA, now=self.now)

    def advance(self, seconds: float = 1.0) -> str:
        self.now += timedelta(seconds=seconds)
        GatewayInstance.objects.filter(gone_at=None).update(seen_at=self.now)
        loop.run_pass(self.now)
        return self.rollout.phase

    def acknowledge(self, **values: Any) -> None:
        state = RoutingState.objects.get()
        GatewayInstance.objects.update(
            epoch=state.epoch, version=state.version, applied_at=self.now, seen_at=self.now, **values
        )

    def make_candidate(self, phase: str = "ready", **values: Any) -> Replica:
        return make_replica(
            self.candidate, node=self.node, id="candidate-1", phase=phase, routed=phase == "ready", **values
        )

    def send(self, count: int = 10, release: int = 2) -> None:
        key = SeriesKey("smollm2", release, "candidate-1", "short", "standard")
        add_cells({(key, self.now): Cell(counts={"requests": count}, outcomes={"ok": count})})

    def judge(self, judgement: str, **values: str) -> None:
        Rollout.objects.update(
            verdict={"judgement": judgement, "text": "", "broken_limit": ""} | values, verdict_at=self.now
        )

    def pass_step(self) -> str:
        self.send()
        self.now += timedelta(seconds=20)
        self.judge("not_worse")
        return self.advance(0.1)

    def to_first_step(self, wish: RolloutWish = WISH) -> Rollout:
        self.start(wish)
        self.make_candidate()
        for _ in range(3):
            self.advance()
        assert self.rollout.phase == Phase.STEPPING
        return self.rollout


@pytest.fixture
def world() -> World:
    return World()


def weights() -> dict[str, int]:
    return dict(Plan.objects.get(in_force__model__name="smollm2").weights)


def test_a_rollout_goes_from_start_to_promotion(world: World) -> None:
    world.start()
    assert world.advance() == Phase.PLANNED
    assert Scale.objects.get(release=world.candidate).replicas == 1

    candidate = world.make_candidate("loading")
    assert world.advance() == Phase.PREPARING
    assert world.advance() == Phase.PREPARING
    Replica.objects.filter(pk=candidate.pk).update(phase="warming")
    assert world.advance() == Phase.WARMING
    assert world.advance() == Phase.WARMING
    assert weights() == {"1": 100}
    Replica.objects.filter(pk=candidate.pk).update(phase="ready", routed=True)
    assert world.advance() == Phase.STEPPING
    assert weights() == {"1": 90, "2": 10}
    assert world.advance() == Phase.STEPPING
    assert world.pass_step() == Phase.STEPPING
    assert weights() == {"1": 50, "2": 50}
    assert world.pass_step() == Phase.HOLDING
    assert weights() == {"1": 0, "2": 100}
    world.send()
    assert world.advance(30) == Phase.HOLDING
    assert world.advance(31) == Phase.PROMOTED
    assert Scale.objects.get(release=world.candidate).replicas == 1
    assert world.rollout.ended_at == world.now


def test_fc13_a_second_start_is_refused_and_names_the_first(world: World) -> None:
    first = world.start()

    with pytest.raises(Conflict, match=first.pk):
        world.start()
    assert AuditEntry.objects.filter(action="rollout.start").count() == 1


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (RolloutWish(1), "has 100 % already"),
        (RolloutWish(2, steps=()), "1 to 20"),
        (RolloutWish(2, steps=(Step(50), Step(50))), "larger than the one before"),
        (RolloutWish(2, steps=(Step(0),)), "outside 1 to 100"),
        (RolloutWish(2, steps=(Step(5, soak_s=-1),)), "soak_s"),
        (RolloutWish(2, lanes=("huge",)), "no lane 'huge'"),
        (RolloutWish(2, hold_s=-1), "hold_s"),
        (RolloutWish(2, replicas=0), "replicas"),
        (RolloutWish(2, gates={"beauty": {}}), "beauty"),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(world: World, wish: RolloutWish, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        world.start(wish)
    assert not Rollout.objects.exists()


@pytest.mark.parametrize("reached", [Phase.PLANNED, Phase.PREPARING, Phase.WARMING])
def test_before_the_first_weight_a_rollback_is_an_abort_without_a_plan(world: World, reached: Phase) -> None:
    world.start()
    if reached is not Phase.PLANNED:
        world.make_candidate("loading" if reached is Phase.PREPARING else "warming")
        for _ in range(3):
            world.advance()
    assert world.rollout.phase == reached

    rollout, changed = roll_back(world.rollout.pk, actor=OLGA, now=world.now)

    assert (rollout.phase, changed) == (Phase.ROLLED_BACK, True)
    assert Plan.objects.count() == 1
    assert Scale.objects.get(release=world.candidate).replicas == 0


def test_one_click_takes_all_traffic_back_and_proves_it(world: World) -> None:
    world.to_first_step()

    plan, changed = roll_back_model("smollm2", to_plan=None, actor=OLGA, now=world.now)

    assert changed
    assert plan.weights == {"1": 100}
    assert plan.rollback_of == 1
    assert world.advance() == Phase.ROLLING_BACK
    assert not load_proof(world.rollout, world.now).complete
    world.acknowledge(report={"replicas": {"candidate-1": {"in_flight": 1, "last_sent_at": 1.5}}})
    assert world.advance() == Phase.ROLLING_BACK
    world.acknowledge(report={"replicas": {"candidate-1": {"in_flight": 0, "last_sent_at": 1.5}}})
    proof = load_proof(world.rollout, world.now)
    assert proof.complete
    assert proof.last_sent_at is not None
    assert proof.last_sent_at.timestamp() == 1.5
    assert world.advance() == Phase.ROLLED_BACK


def test_what_was_waited_for_is_not_said_of_the_phase_that_follows(world: World) -> None:
    """Also while no control process lives."""
    world.to_first_step()
    world.advance()
    assert world.rollout.next_action.startswith("soaking")
    pause(world.rollout.pk, actor=OLGA, now=world.now)
    resume(world.rollout.pk, actor=OLGA, now=world.now)
    assert world.rollout.next_action == ""
    world.advance()

    roll_back(world.rollout.pk, actor=OLGA, now=world.now)

    assert (world.rollout.phase, world.rollout.next_action) == (Phase.ROLLING_BACK, "gateways apply the plan")


def test_a_second_click_never_sends_traffic_back_to_the_candidate(world: World) -> None:
    world.to_first_step()
    roll_back_model("smollm2", to_plan=None, actor=OLGA, now=world.now)
    plans = Plan.objects.count()

    for _ in range(3):
        plan, changed = roll_back_model("smollm2", to_plan=None, actor=OLGA, now=world.now)
        _, moved = roll_back(world.rollout.pk, actor=OLGA, now=world.now)
        assert (changed, moved) == (False, False)
        assert plan.weights == {"1": 100}
    assert Plan.objects.count() == plans
    assert AuditEntry.objects.filter(action="rollout.rollback").count() == 1


def test_fc10_weight_follows_stable_while_it_starts(world: World) -> None:
    Scale.objects.filter(release=world.stable).update(replicas=2)
    world.to_first_step(replace(WISH, replicas=1))
    Replica.objects.filter(pk="stable-1").update(phase="failed")

    roll_back(world.rollout.pk, actor=OLGA, now=world.now)
    assert weights() == {"1": 90, "2": 10}
    Replica.objects.filter(pk="stable-1").update(phase="ready")
    assert world.advance() == Phase.ROLLING_BACK
    assert weights() == {"1": 90, "2": 10}
    make_replica(world.stable, node=world.node, id="stable-2", routed=True)
    world.advance()
    assert weights() == {"1": 100}
    world.acknowledge()
    assert world.advance() == Phase.ROLLED_BACK
    assert AuditEntry.objects.filter(action="rollout.rollback").count() == 1


@pytest.mark.parametrize("paused", [False, True])
def test_fc44_the_guard_takes_back_by_itself(
    world: World, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.to_first_step()
    if paused:
        pause(world.rollout.pk, actor=OLGA, now=world.now)

    def judge(rollout: Rollout, now: datetime) -> None:
        rollout.verdict = {"judgement": "worse", "text": "ttft +40 %", "broken_limit": ""}
        rollout.verdict_at = now

    monkeypatch.setattr(loop, "judge", judge)

    loop.run_guard(world.now)

    assert world.rollout.phase == Phase.ROLLING_BACK
    assert weights() == {"1": 100}
    event = RolloutEvent.objects.get(kind="guard")
    assert "ttft +40 %" in event.text


def test_a_pause_keeps_the_weights_and_resumes_where_it_was(world: World) -> None:
    world.to_first_step()

    _, changed = pause(world.rollout.pk, actor=OLGA, now=world.now)
    _, again = pause(world.rollout.pk, actor=OLGA, now=world.now)
    assert (changed, again) == (True, False)
    assert world.pass_step() == Phase.PAUSED
    assert weights() == {"1": 90, "2": 10}
    resume(world.rollout.pk, actor=OLGA, now=world.now)
    assert (world.rollout.phase, world.rollout.step) == (Phase.STEPPING, 0)


def test_promote_goes_to_full_weight_now_and_holds(world: World) -> None:
    world.to_first_step()

    _, changed = promote(world.rollout.pk, actor=OLGA, now=world.now)
    _, again = promote(world.rollout.pk, actor=OLGA, now=world.now)

    assert (changed, again) == (True, False)
    assert world.advance() == Phase.HOLDING
    assert weights() == {"1": 0, "2": 100}


def test_fc18_other_hands_leave_a_running_rollout_alone(world: World) -> None:
    world.to_first_step()

    with pytest.raises(Conflict, match="sets the weights"):
        set_plan("smollm2", PlanWish({1: 50, 2: 50}), actor=OLGA)
    with pytest.raises(Conflict, match="rollback needs them"):
        set_scale("smollm2", 1, replicas=0, lane="", actor=OLGA)
    assert weights() == {"1": 90, "2": 10}


def test_fc18_the_candidate_that_is_waited_for_is_not_scaled_away(world: World) -> None:
    world.start()
    world.advance()
    set_scale("smollm2", 2, replicas=3, lane="", actor=OLGA)
    set_scale("smollm2", 2, replicas=1, lane="", actor=OLGA)

    with pytest.raises(Conflict, match="keeps its 1 replicas until it has ended, since its first step waits"):
        set_scale("smollm2", 2, replicas=0, lane="", actor=OLGA)
    roll_back(world.rollout.pk, actor=OLGA, now=world.now)
    assert Scale.objects.get(release=world.candidate).replicas == 0


@pytest.mark.parametrize("reached", [Phase.PLANNED, Phase.PREPARING, Phase.WARMING])
@pytest.mark.parametrize("paused", [False, True])
def test_fc18_a_plan_put_in_force_before_the_first_weight_ends_the_rollout(
    world: World, reached: Phase, paused: bool
) -> None:
    make_release(world.model, number=3, replicas=0)
    set_plan("smollm2", PlanWish({1: 40, 3: 60}), actor=OLGA)
    world.start()
    if reached is not Phase.PLANNED:
        world.make_candidate("loading" if reached is Phase.PREPARING else "warming")
        for _ in range(3):
            world.advance()
    assert world.rollout.phase == reached
    if paused:
        pause(world.rollout.pk, actor=OLGA, now=world.now)

    back, changed = roll_back_model("smollm2", to_plan=None, actor=OLGA, now=world.now)
    Replica.objects.filter(pk="candidate-1").update(phase="ready", routed=True)
    if paused:
        assert world.advance() == Phase.PAUSED
        resume(world.rollout.pk, actor=OLGA, now=world.now)
    for _ in range(5):
        world.advance()

    assert (back.weights, changed) == ({"1": 100}, True)
    assert (world.rollout.phase, world.rollout.reason_code) == (Phase.FAILED, "other_plan")
    assert f"Plan {back.number} was put in force by olga" in world.rollout.reason_text
    assert (weights(), Plan.objects.count()) == ({"1": 100}, back.number)
    assert Scale.objects.get(release=world.candidate).replicas == 0


def test_fc18_a_candidate_that_cannot_start_fails_before_it_had_weight(world: World) -> None:
    world.start()
    world.make_candidate("failed", failure_kind="permanent", reason_text="no such weights")
    world.advance()

    assert world.advance() == Phase.FAILED
    assert "no such weights" in world.rollout.reason_text
    assert weights() == {"1": 100}
    assert Scale.objects.get(release=world.candidate).replicas == 0


class Killed(BaseException):
    """The process is gone: nobody catches it."""


TRANSITIONS: list[Callable[[World], object]] = [
    lambda world: world.advance(),
    lambda world: world.advance(),
    lambda world: world.advance(),
    lambda world: world.pass_step(),
    lambda world: world.pass_step(),
    lambda world: world.advance(61),
]


WITH_A_PLAN = (2, 3, 4)


@pytest.mark.parametrize("killed_at", range(len(TRANSITIONS)))
@pytest.mark.parametrize("where", ["put_in_force", "note", "queue_rollout_notices", "update_if"])
def test_a_control_process_killed_anywhere_gives_the_same_end(
    world: World, monkeypatch: pytest.MonkeyPatch, killed_at: int, where: str
) -> None:
    killed = False
    world.start()
    world.make_candidate()
    for number, transition in enumerate(TRANSITIONS):
        if number == killed_at:
            with monkeypatch.context() as patch:
                patch.setattr(rollout_moves, where, _kill)
                before = _stored()
                try:
                    transition(world)
                except Killed:
                    killed = True
                    assert _stored() == before
        transition(world)
        world.send()

    world.advance()
    assert killed == (where != "put_in_force" or killed_at in WITH_A_PLAN)
    assert world.rollout.phase == Phase.PROMOTED
    assert weights() == {"1": 0, "2": 100}
    assert Plan.objects.count() == 4
    assert RolloutEvent.objects.filter(kind="phase").count() == 7


def _kill(*args: object, **kwargs: object) -> None:
    raise Killed


def _stored() -> tuple[str, int, int, datetime]:
    rollout = Rollout.objects.get()
    return rollout.phase, rollout.step, Plan.objects.count(), rollout.entered_at


def test_one_rollout_that_cannot_be_read_holds_no_other_up(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.to_first_step()
    world.judge("worse", text="ttft")

    def judge(rollout: Rollout, now: datetime) -> None:
        raise ValueError("unreadable")

    monkeypatch.setattr(loop, "judge", judge)

    loop.run_guard(world.now)

    assert world.rollout.phase == Phase.ROLLING_BACK
    assert "could not be read" in caplog.text


def test_every_change_of_phase_is_told_to_webhooks_and_audited(world: World) -> None:
    Webhook.objects.create(name="pager", url="https://example.org/")
    world.to_first_step()
    pause(world.rollout.pk, actor=OLGA, now=world.now)
    resume(world.rollout.pk, actor=OLGA, now=world.now)

    told = [notice.body["phase"] for notice in Notice.objects.order_by("id")]
    assert told == ["planned", "preparing", "warming", "stepping", "paused", "stepping"]
    assert AuditEntry.objects.filter(action="rollout.stepping", source="loop").count() == 1


def test_a_gateway_that_fell_silent_after_it_applied_the_plan_is_named(world: World) -> None:
    world.to_first_step()
    roll_back(world.rollout.pk, actor=OLGA, now=world.now)
    world.acknowledge()
    world.now += timedelta(seconds=10)

    loop.run_pass(world.now)

    assert world.rollout.phase == Phase.ROLLING_BACK
    assert "gw-1 is silent" in world.rollout.next_action


def test_fencing_stops_the_candidates_engines_and_only_while_it_goes_back(world: World) -> None:
    world.to_first_step()
    with pytest.raises(Conflict, match="while a rollback runs"):
        fence(world.rollout.pk, actor=OLGA, now=world.now)
    roll_back(world.rollout.pk, actor=OLGA, now=world.now)

    _, changed = fence(world.rollout.pk, actor=OLGA, now=world.now)
    _, again = fence(world.rollout.pk, actor=OLGA, now=world.now)

    candidate = Replica.objects.get(pk="candidate-1")
    assert (changed, again) == (True, False)
    assert (candidate.wish, candidate.phase, candidate.stop_forced) == ("stop", "draining", True)
    assert Replica.objects.get(pk="stable-1").phase == "ready"


def test_fc18_a_lane_that_a_coming_step_names_cannot_go(world: World) -> None:
    set_lanes("smollm2", [LaneWish("short", 512, 8, 300), LaneWish("long", None, 2, 2000)], actor=OLGA)
    whole = [LaneWish("all", None, 8, 300)]
    world.start(replace(WISH, lanes=("short", "long")))

    with pytest.raises(Conflict, match="a running rollout use the lanes long, short"):
        set_lanes("smollm2", whole, actor=OLGA)
    roll_back(world.rollout.pk, actor=OLGA, now=world.now)
    set_lanes("smollm2", whole, actor=OLGA)
