"""The wish for a profile, its run and what is kept of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.domain.step_profiles import KEPT_PER_REPLICA, MAX_RESULT_BYTES, OPEN_FOR, Lost
from pool.models import AuditEntry, Intent, Replica, Runtime, StepProfile
from pool.queries.step_profiles import find_newest, find_profile, list_profiles
from pool.services.errors import Invalid, NotFound
from pool.services.intents import list_open_intents
from pool.services.replicas import Because, move, seen
from pool.services.step_profiles import (
    EngineIsSimulated,
    ProfileIsOpen,
    ReplicaNotReady,
    ask_profile,
    begin_profile,
    fail_profile,
    store_profile,
)
from tests.pool.services.world import ACTOR, NOW, World, make_replica, make_world

pytestmark = pytest.mark.django_db
STEP = {
    "prefill_sequences": 0, "prefill_tokens": 0, "decode_sequences": 2, "decode_tokens": 2, "total_s": 0.01,
    "parts_s": {"attention": 0.002, "matrix_products": 0.005, "copies": 0.001, "other": 0.0},
    "launches_s": None, "launches": 0,
}  # fmt: skip
FIGURES: dict[str, Any] = {
    "on_device": False,
    "steps": [STEP, STEP],
    "kernels": [{"name": "aten::mm", "part": "matrix_products", "seconds": 0.01, "calls": 60}],
}
FLAME: dict[str, Any] = {
    "name": "steps",
    "value": 0.016,
    "children": [{"name": "aten::mm", "value": 0.01, "children": []}],
}


@pytest.fixture
def world() -> World:
    made = make_world()
    Runtime.objects.update(kind="vllm")
    return made


@pytest.fixture
def replica(world: World) -> Replica:
    return make_replica(world, phase="ready")


def ask(replica: Replica, **values: Any) -> StepProfile:
    return ask_profile(replica.pk, actor=ACTOR, **({"now": NOW} | values))


def begin(run: StepProfile) -> None:
    assert run.intent is not None
    assert begin_profile(run.intent, now=NOW) is not None


def test_a_wish_is_an_intent_a_waiting_run_and_an_audit_row(replica: Replica) -> None:
    run = ask(replica, steps=7)

    intent = Intent.objects.get(action="profile")
    assert (run.phase, run.generation, run.intent) == ("waiting", 1, intent)
    assert (intent.phase, intent.generation, intent.parameters) == ("pending", 1, {"steps": 7})
    entry = AuditEntry.objects.get(action="replica.profile")
    assert (entry.subject, entry.details) == (f"replica/{replica.pk}", {"generation": 1, "steps": 7})


@pytest.mark.parametrize("steps", [0, 51, -1])
def test_steps_out_of_range_are_refused(replica: Replica, steps: int) -> None:
    with pytest.raises(Invalid, match="1 to 50"):
        ask(replica, steps=steps)

    assert not StepProfile.objects.exists()


def test_an_unknown_replica_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        ask_profile("nosuch", actor=ACTOR, now=NOW)


@pytest.mark.parametrize("phase", ["pending", "loading", "warming", "draining", "failed", "stopped"])
def test_only_a_ready_replica_is_profiled(world: World, phase: str) -> None:
    with pytest.raises(ReplicaNotReady, match=phase):
        ask(make_replica(world, phase=phase))

    assert not Intent.objects.filter(action="profile").exists()
    assert not AuditEntry.objects.filter(action="replica.profile").exists()


def test_a_simulated_engine_is_not_profiled(replica: Replica) -> None:
    Runtime.objects.update(kind="sim")

    with pytest.raises(EngineIsSimulated):
        ask(replica)


def test_one_run_at_a_time_and_another_when_it_is_over(replica: Replica) -> None:
    run = ask(replica)
    with pytest.raises(ProfileIsOpen, match="waiting"):
        ask(replica)
    begin(run)
    with pytest.raises(ProfileIsOpen, match="running"):
        ask(replica)

    assert store_profile(run.pk, figures=FIGURES, flame=FLAME, now=NOW)

    assert ask(replica).pk != run.pk
    assert Intent.objects.filter(action="profile", generation=1).count() == 2


def test_a_run_that_nobody_carried_out_makes_way(replica: Replica) -> None:
    lost = ask(replica)

    late = NOW + OPEN_FOR
    newest, _ = find_newest(replica.pk, now=late)
    assert newest is not None
    assert (newest.phase, newest.reason) == ("failed", "overdue")
    ask(replica, now=late)

    lost.refresh_from_db()
    assert (lost.phase, lost.reason_code) == ("failed", "overdue")
    assert list(Intent.objects.filter(action="profile").values_list("phase", flat=True)) == [
        "void",
        "pending",
    ]


def test_a_result_of_an_older_generation_is_not_stored(replica: Replica) -> None:
    run = ask(replica)
    begin(run)
    Replica.objects.update(generation=2)

    assert not store_profile(run.pk, figures=FIGURES, flame=FLAME, now=NOW)

    [row] = list_profiles(replica.pk, now=NOW)
    assert (row.phase, row.reason, row.is_current) == ("failed", "replica_left", False)


def test_a_replica_that_left_is_not_profiled_any_more(replica: Replica, world: World) -> None:
    run = ask(replica)
    move(seen(replica), to="draining", because=Because("drain", "asked"), now=NOW)  # type: ignore[arg-type]
    [intent] = list_open_intents(world.node)

    assert begin_profile(intent, now=NOW) is None

    run.refresh_from_db()
    assert (run.phase, run.reason_code) == ("failed", "replica_left")


def test_a_late_failure_changes_no_result(replica: Replica) -> None:
    run = ask(replica)
    begin(run)
    store_profile(run.pk, figures=FIGURES, flame=FLAME, now=NOW)

    assert not fail_profile(run.pk, Lost("late", "late"), now=NOW)
    assert not store_profile(run.pk, figures={}, flame={}, now=NOW)

    run.refresh_from_db()
    assert run.figures == FIGURES


def test_a_result_that_is_too_large_is_refused(replica: Replica) -> None:
    run = ask(replica)
    begin(run)

    with pytest.raises(Invalid, match="too large"):
        store_profile(run.pk, figures=FIGURES, flame={"name": "x" * MAX_RESULT_BYTES}, now=NOW)


def test_the_newest_of_a_replica_are_kept(replica: Replica) -> None:
    made = []
    for minute in range(KEPT_PER_REPLICA + 2):
        run = ask(replica, now=NOW + timedelta(minutes=minute))
        fail_profile(run.pk, Lost("no_step", "No step ran."), now=NOW)
        made.append(run.pk)

    rows = list_profiles(replica.pk, now=NOW, limit=100)

    assert [row.id for row in rows] == made[: -KEPT_PER_REPLICA - 1 : -1]


def test_a_result_tells_shares_of_the_steps_time(replica: Replica) -> None:
    run = ask(replica)
    begin(run)
    store_profile(run.pk, figures=FIGURES, flame=FLAME, now=NOW)

    view = find_profile(replica.pk, run.pk, now=NOW)

    assert view is not None
    assert view.profile.shares == pytest.approx(
        {"attention": 0.2, "matrix_products": 0.5, "copies": 0.1, "other": 0.0, "between": 0.2}
    )
    assert view.profile.steps_seen == 2
    assert view.profile.step_s == pytest.approx(0.01)
    assert (view.profile.launches_share, view.profile.launches_per_step) == (None, None)
    assert view.kernels[0].share == pytest.approx(0.5)
    assert view.flame == FLAME
    assert find_profile("another", run.pk, now=NOW) is None


def test_beside_a_device_launches_are_told(replica: Replica) -> None:
    run = ask(replica)
    begin(run)
    step = STEP | {"launches_s": 0.004, "launches": 120}
    store_profile(run.pk, figures=FIGURES | {"on_device": True, "steps": [step]}, flame=FLAME, now=NOW)

    [row] = list_profiles(replica.pk, now=NOW)

    assert row.launches_share == pytest.approx(0.4)
    assert row.launches_per_step == 120


def test_a_failed_run_hides_no_older_result(replica: Replica) -> None:
    first = ask(replica)
    begin(first)
    store_profile(first.pk, figures=FIGURES, flame=FLAME, now=NOW)
    fail_profile(ask(replica).pk, Lost("profile_failed", "No step ran."), now=NOW)

    newest, result = find_newest(replica.pk, now=NOW)

    assert newest is not None
    assert newest.reason_text == "No step ran."
    assert result is not None
    assert (result.profile.id, result.flame) == (first.pk, None)
