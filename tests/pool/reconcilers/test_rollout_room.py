"""A candidate that has no room beside stable (FC-16): one device, real sizes, and the passes of both loops by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.replica import Phase as ReplicaPhase
from pool.domain.rollout import Phase, Step
from pool.models import (
    AuditEntry,
    DeviceMemory,
    GatewayInstance,
    Plan,
    Replica,
    Rollout,
    RolloutEvent,
    RoutingState,
    Scale,
)
from pool.queries.fit_reports import load_fit_report
from pool.queries.release_diffs import load_diff
from pool.reconcilers import replicas as replica_loop
from pool.reconcilers import rollouts as rollout_loop
from pool.services.audit import Actor
from pool.services.errors import Conflict
from pool.services.replicas import mark_stopped, seen
from pool.services.rollouts import RolloutWish, promote, roll_back, start_rollout
from pool.telemetry.store import add_cells
from tests import factories
from tests.factories import GIB, T0

pytestmark = pytest.mark.django_db
OLGA = Actor("olga", "api")
STEPS = (Step(10, soak_s=10, min_requests=0), Step(50, soak_s=10, min_requests=0))
WISH = RolloutWish(candidate=2, steps=STEPS, hold_s=60)
SWAP = RolloutWish(candidate=2, steps=STEPS, hold_s=60, accept_outage=True)
FACTS = {
    "architecture": "LlamaForCausalLM", "model_type": "llama", "layers": 30, "heads": 9, "kv_heads": 3,
    "head_size": 64, "hidden_size": 576, "vocab_size": 49152, "dtype": "bfloat16", "context_tokens": 8192,
    "intermediate_size": 1536, "tied_embeddings": True, "weight_bytes": 269_030_016, "cache_kind": "full",
}  # fmt: skip


class Pool:
    """`devices` GPUs of 80 GiB, each full of one replica of release 1; release 2 is another profile."""

    def __init__(self, devices: int = 1) -> None:
        factories.make_routing_state()
        self.node = factories.make_node("node-a")
        factories.make_runtime(self.node, name="vllm-1", kind="vllm", facts={"platform": "cuda"})
        model = factories.make_model("smollm2")
        version = factories.make_version(model, facts=FACTS)
        factories.make_presence(version, self.node, phase="present")
        more = factories.make_profile("more", settings={"max_num_seqs": 64})
        self.stable = factories.make_release(model, runtime="vllm-1", replicas=devices)
        self.candidate = factories.make_release(model, number=2, runtime="vllm-1", replicas=0, profile=more)
        for index in range(devices):
            device = factories.make_device(self.node, index=index)
            factories.make_replica(
                self.stable, node=self.node, id=f"stable-{index}", routed=True, device_uuids=[device.uuid]
            )
        factories.make_plan(model)
        factories.make_gateway("gw-1")
        self.now = T0
        self.measure()

    @property
    def rollout(self) -> Rollout:
        return Rollout.objects.get()

    def measure(self) -> None:
        """As a node would: an engine that holds a device holds 70 GiB of it."""
        for memory in DeviceMemory.objects.select_related("device"):
            holding = Replica.objects.exclude(phase__in=["pending", "stopped", "failed"])
            ours = 70 * GIB if any(memory.device.uuid in row.device_uuids for row in holding) else 0
            memory.ours_bytes, memory.free_bytes = ours, 79 * GIB - ours
            memory.measured_at = self.now
            memory.save()
        Replica.objects.update(load={"running": 0, "waiting": 0}, load_measured_at=self.now)

    def advance(self, seconds: float = 1.0, *, acknowledged: bool = True) -> str:
        self.now += timedelta(seconds=seconds)
        self.measure()
        replica_loop.run_pass(self.now)
        rollout_loop.run_pass(self.now)
        replica_loop.run_pass(self.now)
        if acknowledged:
            state = RoutingState.objects.get()
            GatewayInstance.objects.update(
                epoch=state.epoch, version=state.version, applied_at=self.now, seen_at=self.now,
                report={"replicas": {}, "in_flight": 0},
            )  # fmt: skip
        return self.rollout.phase

    def end(self, *names: str) -> None:
        """The engines are gone, and their memory is back."""
        for row in Replica.objects.filter(pk__in=names):
            assert row.wish == "stop"
            assert mark_stopped(seen(row), reason="test", now=self.now)

    def get_ready(self, release: Any) -> Replica:
        """The one that was placed last comes up."""
        row = Replica.objects.get(release=release, phase="starting")
        Replica.objects.filter(pk=row.pk).update(
            phase="ready", routed=True, ready_at=self.now, engine="running", phase_entered_at=self.now
        )
        row.claims.all().delete()
        return row

    def swap(self) -> Replica:
        """To the moment in which the candidate serves and stable is gone."""
        start_rollout("smollm2", SWAP, actor=OLGA, now=self.now)
        for _ in range(3):
            self.advance()
        self.end("stable-0")
        self.advance()
        candidate = self.get_ready(self.candidate)
        for _ in range(3):
            self.advance()
        assert self.rollout.phase == Phase.STEPPING
        return candidate


@pytest.fixture
def pool() -> Pool:
    return Pool()


def phases() -> dict[int, str]:
    return dict(Replica.objects.order_by("created_at").values_list("release__number", "phase"))


def weights() -> dict[str, int]:
    return dict(Plan.objects.get(in_force__model__name="smollm2").weights)


def scales() -> dict[int, int]:
    return dict(Scale.objects.values_list("release__number", "replicas"))


def measure_start(pool: Pool, release: Any, *, seconds: int = 90) -> None:
    old = factories.make_replica(release, phase="stopped", wish="stop")
    for phase, after in (("starting", 0), ("ready", seconds), ("draining", 200), ("stopped", 210)):
        factories.make_phase_change(old, phase, at=T0 - timedelta(hours=1) + timedelta(seconds=after))


def test_fc16_a_start_that_costs_an_outage_is_refused_with_its_length(pool: Pool) -> None:
    measure_start(pool, pool.stable)

    with pytest.raises(Conflict) as refused:
        start_rollout("smollm2", WISH, actor=OLGA, now=pool.now)

    assert "stable-0 has to stop" in refused.value.message
    assert (
        "For about 100 s nobody serves (medians of 1 start of its runtime and 1 stop of its release"
        in refused.value.message
    )
    assert "accept_outage" in refused.value.message
    assert refused.value.details["outage_s"] == 100.0
    assert refused.value.details["stops"] == ["stable-0"]
    assert not Rollout.objects.exists()


def test_fc16_an_outage_that_was_never_measured_is_said_to_be_unknown(pool: Pool) -> None:
    with pytest.raises(Conflict) as refused:
        start_rollout("smollm2", WISH, actor=OLGA, now=pool.now)

    assert refused.value.details["outage_s"] is None
    assert "How long nobody serves is unknown" in refused.value.message


def test_fc16_a_foreign_process_in_the_way_makes_it_impossible(pool: Pool) -> None:
    Replica.objects.all().delete()
    held = {"pid": 7, "name": "train.py", "bytes": 60 * GIB, "ours": False}
    DeviceMemory.objects.update(free_bytes=20 * GIB, ours_bytes=0, processes=[held])

    with pytest.raises(Conflict) as refused:
        start_rollout("smollm2", SWAP, actor=OLGA, now=pool.now)

    assert refused.value.details["outcome"] == "impossible"
    assert "foreign process pid 7 (train.py) holds 60.00 GiB" in refused.value.message


def test_fc16_a_swap_stops_stable_and_loads_on_measured_free_memory(pool: Pool) -> None:
    rollout = start_rollout("smollm2", SWAP, actor=OLGA, now=pool.now)

    assert [step["weight"] for step in rollout.steps] == [100]
    assert rollout.fit["outcome"] == "swap_only"
    assert RolloutEvent.objects.filter(rollout=rollout, code="swap_only").exists()
    assert AuditEntry.objects.get(action="rollout.start").details["accept_outage"] is True
    for _ in range(3):
        pool.advance()
    assert Replica.objects.get(pk="stable-0").phase == ReplicaPhase.DRAINING
    # The engine is on its way out and its memory not back: the candidate waits, and says for what.
    assert phases()[2] == ReplicaPhase.PENDING
    assert scales() == {1: 0, 2: 1}
    assert "waits for a place" in pool.rollout.next_action
    assert Replica.objects.get(release=pool.candidate).failed_starts == 0

    pool.end("stable-0")
    pool.advance(10)

    assert phases()[2] == ReplicaPhase.STARTING
    pool.get_ready(pool.candidate)
    for _ in range(3):
        pool.advance()
    assert pool.rollout.phase == Phase.STEPPING
    assert weights() == {"1": 0, "2": 100}


def test_fc10_after_a_swap_the_way_back_gives_stable_its_room_first(pool: Pool) -> None:
    candidate = pool.swap()

    rollout, changed = roll_back(pool.rollout.pk, actor=OLGA, now=pool.now)

    assert changed
    assert weights() == {"1": 100}
    assert scales() == {1: 1, 2: 0}
    for _ in range(4):
        assert pool.advance() == Phase.ROLLING_BACK
    assert Replica.objects.get(pk=candidate.pk).phase == ReplicaPhase.DRAINING
    assert "the stable release loads again: 0 %" in pool.rollout.next_action
    pool.end(candidate.pk)
    pool.advance(5)
    pool.get_ready(pool.stable)
    assert pool.advance() == Phase.ROLLED_BACK
    assert roll_back(rollout.pk, actor=OLGA, now=pool.now)[1] is False
    assert weights() == {"1": 100}


def test_fc16_an_abort_before_the_first_weight_brings_stable_back(pool: Pool) -> None:
    start_rollout("smollm2", SWAP, actor=OLGA, now=pool.now)
    for _ in range(3):
        pool.advance()
    pool.end("stable-0")

    roll_back(pool.rollout.pk, actor=OLGA, now=pool.now)

    assert pool.rollout.phase == Phase.ROLLED_BACK
    assert scales() == {1: 1, 2: 0}
    pool.advance()
    pool.advance()
    assert Replica.objects.get(release=pool.stable, wish="run").phase == ReplicaPhase.STARTING


def test_fc16_a_candidate_that_cannot_start_gives_the_room_back_by_itself(pool: Pool) -> None:
    start_rollout("smollm2", SWAP, actor=OLGA, now=pool.now)
    for _ in range(3):
        pool.advance()
    pool.end("stable-0")
    Replica.objects.filter(release=pool.candidate).update(
        phase="failed", failure_kind="permanent", reason_text="bad weights", next_retry_at=None
    )

    assert pool.advance() == Phase.FAILED
    assert scales() == {1: 1, 2: 0}


def test_fc16_an_outage_far_longer_than_was_said_is_ended(pool: Pool) -> None:
    measure_start(pool, pool.stable, seconds=300)
    start_rollout("smollm2", SWAP, actor=OLGA, now=pool.now)
    for _ in range(3):
        pool.advance()
    pool.end("stable-0")
    pool.advance()

    assert pool.advance(925) == Phase.PREPARING
    assert pool.advance(5) == Phase.FAILED

    assert pool.rollout.reason_code == "outage_too_long"
    assert "930 s after stable stopped for it, and about 310 s were said" in pool.rollout.reason_text
    assert scales() == {1: 1, 2: 0}


def test_nothing_is_stopped_where_room_is_another_than_was_accepted(pool: Pool) -> None:
    start_rollout("smollm2", SWAP, actor=OLGA, now=pool.now)
    factories.make_device(pool.node, index=1)
    # Until the loop looks again the second device has taken nothing.
    rollout_loop.run_pass(pool.now)
    factories.make_replica(pool.candidate, phase="pending", id="candidate-1")
    rollout_loop.run_pass(pool.now)
    rollout_loop.run_pass(pool.now)

    assert pool.rollout.phase == Phase.FAILED
    assert pool.rollout.reason_code == "room_changed"
    assert Replica.objects.get(pk="stable-0").wish == "run"
    assert scales() == {1: 1, 2: 0}


def test_a_stop_is_not_begun_on_old_measurements(pool: Pool) -> None:
    start_rollout("smollm2", SWAP, actor=OLGA, now=pool.now)
    rollout_loop.run_pass(pool.now)
    factories.make_replica(pool.candidate, phase="pending", id="candidate-1")
    rollout_loop.run_pass(pool.now)
    rollout_loop.run_pass(pool.now + timedelta(seconds=20))

    assert pool.rollout.phase == Phase.PREPARING
    assert "room is looked for before anything of stable stops" in pool.rollout.next_action
    assert Replica.objects.get(pk="stable-0").wish == "run"


def test_fc10_a_swap_of_one_of_two_goes_by_steps_and_leaves_the_other_serving() -> None:
    pool = Pool(devices=2)
    wish = RolloutWish(candidate=2, steps=STEPS, hold_s=60, replicas=1, accept_outage=True)

    rollout = start_rollout("smollm2", wish, actor=OLGA, now=pool.now)

    assert [step["weight"] for step in rollout.steps] == [10, 50]
    assert rollout.swap["scales"] == [["", 2, 1]]
    for _ in range(3):
        pool.advance()
    assert scales() == {1: 1, 2: 1}
    assert sorted(Replica.objects.filter(release=pool.stable).values_list("phase", flat=True)) == [
        "draining", "ready",
    ]  # fmt: skip


def test_a_swap_is_promoted_by_hand_since_nothing_is_compared(pool: Pool) -> None:
    pool.swap()
    key = SeriesKey("smollm2", 2, "candidate-1", "short", "standard")
    add_cells({(key, pool.now): Cell(counts={"requests": 40}, outcomes={"ok": 40})})
    pool.advance(60)
    assert pool.rollout.phase == Phase.STEPPING
    assert "nothing to compare with: promote it, or take it back" in pool.rollout.next_action

    promote(pool.rollout.pk, actor=OLGA, now=pool.now)

    assert pool.advance() == Phase.HOLDING
    assert weights()["2"] == 100


def test_an_idle_replica_is_named_and_one_that_serves_is_not(pool: Pool) -> None:
    other = factories.make_release(
        factories.make_model("other"), runtime="vllm-1", version=pool.stable.version, number=5
    )
    Replica.objects.filter(pk="stable-0").update(release=other)
    idle = load_fit_report(pool.candidate, pool.stable, [("", 1)], steps=2, now=pool.now)
    Replica.objects.update(load={"running": 1, "waiting": 0})
    busy = load_fit_report(pool.candidate, pool.stable, [("", 1)], steps=2, now=pool.now)
    Replica.objects.update(load={"running": 0, "waiting": 0})
    factories.make_plan(other.model, weights={"5": 100})
    serving = load_fit_report(pool.candidate, pool.stable, [("", 1)], steps=2, now=pool.now)

    assert idle.outcome == "fits_if_stopped"
    assert (idle.devices[0].foreign_bytes, idle.devices[0].index) == (1 * GIB, 0)
    assert [(row.replica, row.model, row.size_bytes) for row in idle.stop] == [
        ("stable-0", "other", 70 * GIB)
    ]
    assert busy.outcome == serving.outcome == "impossible"


def test_the_diff_names_the_setting_and_its_effect(pool: Pool) -> None:
    found = load_diff(pool.candidate, pool.stable)

    assert found.changed == ("max_num_seqs",)
    [memory] = found.memory
    assert memory.kv_tokens_change is not None
    assert memory.kv_tokens_change > 0
    assert memory.stable.is_estimate
