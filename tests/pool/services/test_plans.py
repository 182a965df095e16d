from typing import Any

import pytest
from django.db import IntegrityError, transaction

from pool.domain.routing_table import RoutingTable, from_bytes
from pool.models import AuditEntry, Plan, PlanInForce
from pool.queries.plans import find_rollback_target, list_plans
from pool.services.audit import Actor
from pool.services.errors import Conflict, Invalid, NotFound
from pool.services.plans import PlanWish, put_in_force, roll_back, set_plan
from pool.services.rollback import roll_back_model
from pool.services.routing import TableNumber, current_delivery, find_newer_table, rebuild_table
from tests.pool.services.world import NOW, SECRET, make_replica, make_world

pytestmark = pytest.mark.django_db
ACTOR = Actor("olga", "api", "req-1")


def stored_table() -> RoutingTable:
    return from_bytes(current_delivery().body, SECRET)


def test_a_plan_is_numbered_put_in_force_and_in_the_routing_table() -> None:
    world = make_world(releases=2)

    plan = set_plan(world.model.name, PlanWish({1: 90, 2: 10}, comment="first step"), actor=ACTOR)

    assert plan.number == 1
    assert PlanInForce.objects.get(model=world.model).plan == plan
    route = stored_table().models[0].plan
    assert route is not None
    assert route.weights == {1: 90, 2: 10}
    assert AuditEntry.objects.get(action="plan.set").actor == "olga"


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({1: 90}, "sum to 90"),
        ({1: 50, 9: 50}, "no release 9"),
        ({1: 150, 2: -50}, "outside 0 to 100"),
        ({}, "sum to 0"),
    ],
)
def test_wrong_weights_are_refused_with_the_reason(weights: dict[int, int], problem: str) -> None:
    world = make_world(releases=2)

    with pytest.raises(Invalid, match=problem):
        set_plan(world.model.name, PlanWish(weights), actor=ACTOR)

    assert Plan.objects.count() == 0


@pytest.mark.parametrize(
    "parts",
    [
        {"pins": {"x" * 64: 1}},
        {"pins": {"": 1}},
        {"pins": {f"label-{n}": 1 for n in range(257)}},
        {"shadow": {"a": "b" * 5000}},
    ],
)
def test_a_plan_that_would_fill_every_routing_table_is_refused(parts: dict[str, Any]) -> None:
    world = make_world()

    with pytest.raises(Invalid, match=next(iter(parts))):
        set_plan(world.model.name, PlanWish({1: 100}, **parts), actor=ACTOR)


@pytest.mark.parametrize(
    "shadow",
    [
        {},
        {"release": 9},
        {"release": True},
        {"release": [1]},
        {"release": 2, "percent": "10"},
        {"release": 2, "percent": 101},
        {"release": 2, "percent": 10, "lane": "short"},
    ],
)
def test_a_shadow_that_no_gateway_could_follow_is_refused(shadow: dict[str, Any]) -> None:
    world = make_world(releases=2)

    with pytest.raises(Invalid, match="shadow: "):
        set_plan(world.model.name, PlanWish({1: 100}, shadow=shadow), actor=ACTOR)


def test_a_shadow_is_in_the_routing_table() -> None:
    world = make_world(releases=2)

    set_plan(world.model.name, PlanWish({1: 100}, shadow={"release": 2, "percent": 10}), actor=ACTOR)

    route = stored_table().models[0].plan
    assert route is not None
    assert route.shadow == {"release": 2, "percent": 10}


def test_an_unknown_model_has_no_plan() -> None:
    make_world()

    with pytest.raises(NotFound):
        set_plan("nobody", PlanWish({1: 100}), actor=ACTOR)


def test_the_database_refuses_weights_that_do_not_sum_to_100() -> None:
    world = make_world()

    with pytest.raises(IntegrityError, match="plan_weights_sum_100"), transaction.atomic():
        Plan.objects.create(model=world.model, number=1, weights={"1": 99})


def test_the_database_refuses_to_change_a_plan() -> None:
    world = make_world()
    set_plan(world.model.name, PlanWish({1: 100}), actor=ACTOR)

    with pytest.raises(IntegrityError, match="never change"), transaction.atomic():
        Plan.objects.update(comment="rewritten")


def test_each_change_raises_the_tables_number_and_an_equal_plan_too() -> None:
    world = make_world()
    before = current_delivery()

    set_plan(world.model.name, PlanWish({1: 100}), actor=ACTOR)
    after = current_delivery()

    assert (after.epoch, after.version) > (before.epoch, before.version)
    assert find_newer_table(before.epoch, before.version) == after.body
    assert find_newer_table(after.epoch, after.version) is None


def test_a_rollback_writes_a_new_plan_equal_to_the_older_one() -> None:
    world = make_world(releases=2)
    set_plan(world.model.name, PlanWish({1: 100}), actor=ACTOR)
    set_plan(world.model.name, PlanWish({1: 50, 2: 50}), actor=ACTOR)

    plan, written = roll_back(world.model.name, to_plan=None, actor=ACTOR)

    assert (plan.number, plan.weights, plan.rollback_of, written) == (3, {"1": 100}, 1, True)


def test_a_second_click_returns_the_rollback_and_changes_nothing() -> None:
    world = make_world(releases=2)
    set_plan(world.model.name, PlanWish({1: 100}), actor=ACTOR)
    set_plan(world.model.name, PlanWish({2: 100}), actor=ACTOR)
    first, _ = roll_back(world.model.name, to_plan=None, actor=ACTOR)

    second, written = roll_back(world.model.name, to_plan=None, actor=ACTOR)

    assert (second, written) == (first, False)
    assert Plan.objects.count() == 3


def test_a_plan_that_a_rollback_left_is_not_gone_back_to() -> None:
    world = make_world(releases=3)
    for weights in ({1: 100}, {2: 100}):
        set_plan(world.model.name, PlanWish(weights), actor=ACTOR)
    roll_back(world.model.name, to_plan=None, actor=ACTOR)
    set_plan(world.model.name, PlanWish({3: 100}), actor=ACTOR)

    plan, _ = roll_back(world.model.name, to_plan=None, actor=ACTOR)

    assert plan.weights == {"1": 100}


def test_any_older_plan_can_be_named() -> None:
    world = make_world(releases=2)
    for weights in ({1: 100}, {2: 100}, {1: 50, 2: 50}):
        set_plan(world.model.name, PlanWish(weights), actor=ACTOR)

    plan, _ = roll_back(world.model.name, to_plan=2, actor=ACTOR)

    assert plan.weights == {"2": 100}
    with pytest.raises(Invalid, match="not an older plan"):
        roll_back(world.model.name, to_plan=9, actor=ACTOR)


def test_without_an_older_plan_there_is_nothing_to_go_back_to() -> None:
    world = make_world()

    with pytest.raises(Conflict, match="no plan in force"):
        roll_back(world.model.name, to_plan=None, actor=ACTOR)
    set_plan(world.model.name, PlanWish({1: 100}), actor=ACTOR)
    with pytest.raises(Conflict, match="no older plan"):
        roll_back(world.model.name, to_plan=None, actor=ACTOR)


def test_a_plan_that_is_put_into_the_table_leaves_what_a_rebuild_would_make() -> None:
    world = make_world(releases=3)
    for weights in ({1: 100}, {1: 50, 2: 50}, {3: 100}):
        set_plan(world.model.name, PlanWish(weights, lanes={}, pins={"canary": 2}), actor=ACTOR)
        written = current_delivery()

        assert rebuild_table() == TableNumber(written.epoch, written.version)
    roll_back(world.model.name, to_plan=None, actor=ACTOR)
    route = stored_table().models[0]

    rebuild_table()

    assert route.plan == stored_table().models[0].plan
    assert {one.number for one in route.releases} >= {1, 2}


def test_a_rollback_reads_no_more_tables_in_a_larger_pool(django_assert_max_num_queries: Any) -> None:
    world = make_world(releases=2)
    set_plan(world.model.name, PlanWish({1: 100, 2: 0}), actor=ACTOR)
    set_plan(world.model.name, PlanWish({1: 50, 2: 50}), actor=ACTOR)

    with django_assert_max_num_queries(20):
        roll_back(world.model.name, to_plan=None, actor=ACTOR)


def test_fc10_no_click_sends_everything_to_nobody() -> None:
    world = make_world(releases=2)
    for weights in ({1: 100}, {2: 100}):
        set_plan(world.model.name, PlanWish(weights), actor=ACTOR)
    make_replica(world, release=2, phase="ready")

    with pytest.raises(Conflict, match="release 1, which has no ready replica"):
        roll_back(world.model.name, to_plan=None, actor=ACTOR)
    with pytest.raises(Conflict, match="nobody would answer"):
        roll_back_model(world.model.name, to_plan=1, actor=ACTOR, now=NOW)

    plan, written = roll_back_model(world.model.name, to_plan=1, actor=ACTOR, now=NOW, accept_outage=True)
    assert (plan.weights, written) == ({"1": 100}, True)


def test_one_click_after_a_promotion_goes_past_the_steps_of_the_rollout() -> None:
    world = make_world(releases=2)
    set_plan(world.model.name, PlanWish({1: 100}), actor=ACTOR)
    for percent in (20, 50, 100):
        wish = PlanWish({1: 100 - percent, 2: percent})
        put_in_force(world.model, wish, actor=ACTOR, rollback_of=None, rollout_base=1)
    shown = find_rollback_target(list_plans(world.model.name))

    plan, is_new = roll_back(world.model.name, to_plan=None, actor=ACTOR)

    assert shown is not None
    assert (is_new, plan.rollback_of, shown.number) == (True, 1, 1)
    assert plan.weights == {"1": 100}


def test_a_later_plan_goes_back_to_the_promoted_one_and_not_to_a_step() -> None:
    world = make_world(releases=3)
    set_plan(world.model.name, PlanWish({1: 100}), actor=ACTOR)
    for base, release in ((1, 2), (3, 3)):
        for percent in (50, 100):
            wish = PlanWish({release - 1: 100 - percent, release: percent})
            put_in_force(world.model, wish, actor=ACTOR, rollback_of=None, rollout_base=base)

    assert Plan.objects.count() == 5
    assert roll_back(world.model.name, to_plan=None, actor=ACTOR)[0].rollback_of == 3


def test_an_older_plan_comes_back_without_the_lanes_that_are_gone() -> None:
    world = make_world(releases=2)
    set_plan(world.model.name, PlanWish({1: 100}, lanes={"short": {1: 100}, "long": {1: 100}}), actor=ACTOR)
    set_plan(world.model.name, PlanWish({2: 100}), actor=ACTOR)
    world.model.lanes.filter(name="short").delete()

    plan, _ = roll_back(world.model.name, to_plan=1, actor=ACTOR)

    assert plan.lanes == {"long": {"1": 100}}
