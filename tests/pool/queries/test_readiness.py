"""Readiness to go back, from rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.readiness import State
from pool.models import GatewayInstance, Model, Node, Release, Replica, Rollout, RoutingState, Scale
from pool.queries.readiness import Readiness, list_readiness, load_readiness
from pool.telemetry.store import add_cells
from tests.factories import (
    T0,
    make_gateway,
    make_model,
    make_node,
    make_phase_change,
    make_plan,
    make_presence,
    make_release,
    make_replica,
    make_routing_state,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def model() -> Model:
    """Release 2 serves; release 1 did before and is warm; one gateway that applied the table in 40 ms."""
    make_routing_state()
    RoutingState.objects.update(changed_at=T0)
    model, node = make_model(), make_node()
    for number in (1, 2):
        make_replica(make_release(model, number=number), node=node, id=f"rep-{number}", routed=True)
    make_presence(Release.objects.get(number=1).version, node, phase="present")
    make_plan(model, number=1)
    make_plan(model, number=2, weights={"2": 100})
    state = RoutingState.objects.get()
    make_gateway("gw-1")
    GatewayInstance.objects.update(
        epoch=state.epoch, version=state.version, seen_at=T0, started_at=T0 - timedelta(hours=1),
        applied_at=T0 + timedelta(milliseconds=40),
    )  # fmt: skip
    return model


def load() -> Readiness:
    told = load_readiness("smollm2", T0)
    assert told is not None
    return told


def add_traffic(release: int = 2, *, per_s: int = 5) -> None:
    key = SeriesKey("smollm2", release, f"rep-{release}", "short", "standard")
    for step in range(1, 31):
        sums = {"e2e_s": per_s * 10.0}
        at = T0 - timedelta(seconds=10 * step)
        add_cells({(key, at): Cell(counts={"requests": per_s * 10}, sums=sums)})


def test_a_warm_release_with_its_capacity(model: Model) -> None:
    add_traffic(per_s=5)

    told = load()

    assert (told.state, told.plan, told.release, told.seconds) == (State.WARM, 1, 1, 0.1)
    assert (told.capacity_ratio, told.capacity_samples, told.applies_s) == (1.6, 1500, 0.04)
    assert (told.replicas_ready, told.replicas_wanted, told.gateways) == (1, 1, 1)


def test_without_requests_its_capacity_is_unknown(model: Model) -> None:
    assert (load().capacity_ratio, load().capacity_samples) == (None, 0)


def test_a_gateway_that_came_after_the_table_shows_nothing_of_its_way(model: Model) -> None:
    GatewayInstance.objects.update(started_at=T0 + timedelta(seconds=1))

    assert (load().applies_s, load().seconds) == (None, 2.0)


def test_a_silent_gateway_is_counted(model: Model) -> None:
    GatewayInstance.objects.update(seen_at=T0 - timedelta(seconds=10))

    assert (load().gateways, load().gateways_silent) == (0, 1)


def test_a_cold_release_needs_a_measured_start(model: Model) -> None:
    Replica.objects.filter(pk="rep-1").update(phase="stopped", wish="stop")
    Scale.objects.filter(release__number=1).update(replicas=0)
    replica = Replica.objects.get(pk="rep-1")
    make_phase_change(replica, "starting", at=T0 - timedelta(days=1, seconds=340))
    make_phase_change(replica, "ready", at=T0 - timedelta(days=1))

    told = load()

    assert (told.state, told.seconds, told.start_s, told.starts) == (State.COLD, 340.1, 340.0, 1)


def test_one_that_starts_counts_from_its_engine_s_start(model: Model) -> None:
    Replica.objects.filter(pk="rep-1").update(phase="loading", started_at=T0 - timedelta(seconds=20))
    replica = Replica.objects.get(pk="rep-1")
    make_phase_change(replica, "starting", at=T0 - timedelta(days=1, seconds=60), generation=0)
    make_phase_change(replica, "ready", at=T0 - timedelta(days=1), generation=0)

    assert (load().state, load().seconds) == (State.STARTING, 40.1)


def test_one_that_waits_for_a_place_has_its_whole_start_before_it(model: Model) -> None:
    Replica.objects.filter(pk="rep-1").update(phase="pending", started_at=T0 - timedelta(hours=1))
    make_phase_change(Replica.objects.get(pk="rep-1"), "starting", at=T0 - timedelta(hours=2, seconds=60))
    make_phase_change(Replica.objects.get(pk="rep-1"), "ready", at=T0 - timedelta(hours=2))

    assert load().seconds == 60.1


def test_without_its_files_it_cannot_come_back(model: Model) -> None:
    Replica.objects.filter(pk="rep-1").delete()
    Release.objects.get(number=1).version.presences.update(phase="absent")

    assert (load().state, load().reason) == (State.IMPOSSIBLE, "no node holds its weights")


def test_a_replica_that_cannot_start_is_named(model: Model) -> None:
    Replica.objects.filter(pk="rep-1").update(
        phase="failed", failure_kind="permanent", reason_text="the cache is too small"
    )

    assert load().reason == "replica rep-1 cannot start: the cache is too small"


def test_after_a_rollback_there_is_nowhere_to_go(model: Model) -> None:
    make_plan(model, number=3, rollback_of=1)
    assert (load().state, load().reason) == (State.NOWHERE, "plan 3 is a rollback to plan 1 already")


def test_the_first_plan_has_none_before_it() -> None:
    make_routing_state()
    make_plan(make_model())

    assert (load().state, load().reason, load().seconds) == (State.NOWHERE, "no older plan", None)


def test_a_model_without_a_plan_and_one_that_does_not_exist() -> None:
    make_routing_state()
    make_model()

    assert (load().state, load().reason) == (State.NOWHERE, "no plan is in force")
    assert load_readiness("nobody", T0) is None


def test_a_rollout_goes_back_to_the_plan_from_which_it_began(model: Model) -> None:
    third = make_release(model, number=3)
    make_plan(model, number=3, weights={"2": 90, "3": 10})
    make_plan(model, number=4, weights={"2": 50, "3": 50})
    stable = Release.objects.get(number=2)
    Rollout.objects.create(
        id="o1", model=model, candidate=third, stable=stable, base_plan=2, phase="stepping", steps=[]
    )

    assert (load().plan, load().release, load().state) == (2, 2, State.WARM)


def test_all_models_at_once_take_no_more_queries(model: Model, django_assert_max_num_queries: Any) -> None:
    for name in ("a", "b", "c"):
        other = make_model(name)
        make_release(other, number=1)
        make_presence(make_release(other, number=2).version, Node.objects.get(), phase="present")
        make_plan(other, number=1)
        make_plan(other, number=2, weights={"2": 100})
    add_traffic()

    with django_assert_max_num_queries(18):
        found = list_readiness(T0)

    assert [told.model for told in found] == ["a", "b", "c", "smollm2"]
    assert [told.state for told in found[:3]] == [State.COLD] * 3
