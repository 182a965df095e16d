"""Nothing is unloaded while the rest cannot carry what comes, unless somebody accepts that."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from pool.domain.cells import Cell, SeriesKey
from pool.models import AuditEntry, Model, Node, Release, Replica, Scale
from pool.services.audit import Actor
from pool.services.catalog import set_scale
from pool.services.errors import Conflict
from pool.services.wishes import ask_drain, ask_restart, set_node_wish
from pool.telemetry.store import add_cells
from tests.factories import make_model, make_node, make_plan, make_release, make_replica, make_routing_state

pytestmark = pytest.mark.django_db
OLGA = Actor("olga", "api")


@pytest.fixture
def model() -> Model:
    """Two ready replicas of release 1, each with 8 slots in the lane; nothing measured yet."""
    make_routing_state()
    model = make_model()
    release = make_release(model, replicas=2)
    for number in (1, 2):
        make_replica(release, node=make_node(f"node-{number}"), id=f"rep-{number}", routed=True)
    make_plan(model)
    return model


def add_traffic(*, in_flight: int, lane: str = "short") -> None:
    """In the last five minutes and a little more; each request takes a second."""
    key, now = SeriesKey("smollm2", 1, "rep-1", lane, "standard"), timezone.now()
    border = now.replace(second=now.second // 10 * 10, microsecond=0)
    for step in range(34):
        cell = Cell(counts={"requests": in_flight * 10}, sums={"e2e_s": in_flight * 10.0})
        add_cells({(key, border - timedelta(seconds=10 * step)): cell})


def scale(replicas: int, **options: bool) -> None:
    set_scale("smollm2", 1, replicas=replicas, lane="", actor=OLGA, **options)


def test_fc10_a_scale_down_is_refused_while_the_rest_cannot_carry_the_load(model: Model) -> None:
    add_traffic(in_flight=12)

    with pytest.raises(Conflict, match=r"release 1 carries about 8\.0 requests/s in lane short") as refused:
        scale(1)

    assert refused.value.details["accept"] == "accept_overload"
    assert Scale.objects.get().replicas == 2
    assert "head-room" not in refused.value.message


def test_it_is_done_where_the_rest_carries_it(model: Model) -> None:
    add_traffic(in_flight=7)

    scale(1)

    assert Scale.objects.get().replicas == 1


def test_it_is_done_where_the_overload_is_accepted_and_the_audit_says_so(model: Model) -> None:
    add_traffic(in_flight=12)

    scale(0, accept_overload=True)

    assert Scale.objects.get().replicas == 0
    assert AuditEntry.objects.get(action="release.scale").details["accept_overload"] is True


def test_a_few_requests_tell_nothing_of_a_load(model: Model) -> None:
    key = SeriesKey("smollm2", 1, "rep-1", "short", "standard")
    add_cells({(key, timezone.now() - timedelta(seconds=30)): Cell(counts={"requests": 19})})

    scale(0)

    assert Scale.objects.get().replicas == 0


def test_a_release_without_weight_is_unloaded_at_any_time(model: Model) -> None:
    make_replica(make_release(model, number=2), node=Node.objects.first(), id="spare", routed=True)
    add_traffic(in_flight=100)

    set_scale("smollm2", 2, replicas=0, lane="", actor=OLGA)

    assert Scale.objects.get(release__number=2).replicas == 0


def test_what_is_not_ready_takes_nothing_away(model: Model) -> None:
    Replica.objects.filter(pk="rep-2").update(phase="failed", routed=False)
    add_traffic(in_flight=100)

    scale(1)

    assert Scale.objects.get().replicas == 1


def test_a_lane_with_replicas_of_its_own_is_looked_at_alone(model: Model) -> None:
    release = make_release(model, number=2, lanes=("short", "mid", "long"))
    make_replica(release, node=Node.objects.first(), id="short-1", lane="short", routed=True)
    make_replica(release, node=Node.objects.first(), id="long-1", lane="long", routed=True)
    make_plan(model, number=2, weights={"2": 100})
    add_traffic(in_flight=4)

    set_scale("smollm2", 2, replicas=0, lane="long", actor=OLGA)
    with pytest.raises(Conflict, match="has no ready replica in lane short"):
        set_scale("smollm2", 2, replicas=0, lane="short", actor=OLGA)


@pytest.mark.parametrize("ask", [ask_drain, ask_restart])
def test_a_drain_and_a_restart_are_refused_the_same_way(model: Model, ask: object) -> None:
    add_traffic(in_flight=12)

    with pytest.raises(Conflict, match="The rest would be overloaded"):
        ask("rep-1", actor=OLGA)  # type: ignore[operator]
    assert Replica.objects.get(pk="rep-1").wish == "run"
    ask("rep-1", actor=OLGA, accept_overload=True)  # type: ignore[operator]


def test_a_failed_replica_is_drained_at_any_time(model: Model) -> None:
    Replica.objects.filter(pk="rep-1").update(phase="failed", routed=False)
    add_traffic(in_flight=100)

    ask_drain("rep-1", actor=OLGA)

    assert Replica.objects.get(pk="rep-1").wish == "stop"


def test_a_node_is_drained_only_if_the_others_carry_its_share(model: Model) -> None:
    add_traffic(in_flight=12)

    with pytest.raises(Conflict, match="The rest would be overloaded"):
        set_node_wish("node-1", "drain", actor=OLGA)
    set_node_wish("node-1", "cordon", actor=OLGA)
    set_node_wish("node-1", "drain", actor=OLGA, accept_overload=True)

    assert Node.objects.get(name="node-1").wish == "drain"
    assert Release.objects.count() == 1
