from typing import Any

import pytest

from pool.domain.gateway_settings import InvalidGatewaySettings
from pool.domain.routing_table import from_bytes
from pool.models import AuditEntry, Lane
from pool.queries.lanes import lane_settings
from pool.services.catalog import create_model
from pool.services.errors import Conflict, Invalid, NotFound
from pool.services.lanes import LaneWish, set_lane, set_lanes
from pool.services.plans import PlanWish, set_plan
from pool.services.routing import current_delivery
from tests.pool.services.world import ACTOR, SECRET, make_world

pytestmark = pytest.mark.django_db
ONE = [LaneWish("all", None, 8, 300)]


@pytest.mark.parametrize(
    ("lanes", "problem"),
    [
        ([], "at least one lane"),
        ([LaneWish("short", 512, 8, 300)], "last lane has no upper edge"),
        ([LaneWish("a", 512, 8, 300), LaneWish("b", 256, 8, 300), LaneWish("c", None, 1, 1)], "edges rise"),
        ([LaneWish("a", 512, 8, 300), LaneWish("a", None, 8, 300)], "name of its own"),
    ],
)
def test_lanes_that_make_no_sense_are_refused(lanes: list[LaneWish], problem: str) -> None:
    make_world()

    with pytest.raises(Invalid, match=problem):
        create_model("other", lanes=lanes, owner="", actor=ACTOR)


@pytest.mark.parametrize(
    "lanes",
    [
        [LaneWish("a", None, 0, 1)],
        [LaneWish("a", None, 1, 2**31)],
        [LaneWish("a", 0, 1, 1), LaneWish("b", None, 1, 1)],
        [*(LaneWish(f"l{n}", n, 1, 1) for n in range(1, 33)), LaneWish("rest", None, 1, 1)],
    ],
)
def test_lanes_without_measure_are_refused(lanes: list[LaneWish]) -> None:
    make_world()

    with pytest.raises(Invalid):
        create_model("other", lanes=lanes, owner="", actor=ACTOR)


def test_lanes_are_replaced_whole() -> None:
    world = make_world()

    set_lanes("chatty", ONE, actor=ACTOR)

    assert list(Lane.objects.filter(model=world.model).values_list("name", flat=True)) == ["all"]


def test_a_lane_that_the_plan_in_force_uses_cannot_go() -> None:
    make_world()
    set_plan("chatty", PlanWish({1: 100}, lanes={"short": {1: 100}}), actor=ACTOR)

    with pytest.raises(Conflict, match="short"):
        set_lanes("chatty", ONE, actor=ACTOR)


def test_settings_of_a_lane_reach_the_routing_table() -> None:
    make_world()

    set_lanes("chatty", [LaneWish("all", None, 8, 300, {"weight": 4, "tokens_per_min": 1000})], actor=ACTOR)

    (lane,) = from_bytes(current_delivery().body, SECRET).models[0].lanes
    assert (lane.settings.concurrency, lane.settings.weight, lane.settings.tokens_per_min) == (8, 4, 1000)
    assert Lane.objects.get().settings == {"weight": 4, "tokens_per_min": 1000}


def test_one_lane_is_changed_and_the_others_stay() -> None:
    make_world()

    set_lane("chatty", "short", {"max_prompt_tokens": 1024, "queue_limit": 0}, actor=ACTOR)

    short, long = Lane.objects.all()
    assert (short.max_prompt_tokens, lane_settings(short).queue_limit, short.concurrency) == (1024, 0, 8)
    assert (long.max_prompt_tokens, long.settings) == (None, {})
    assert AuditEntry.objects.latest("id").details["changes"] == {
        "short": {"max_prompt_tokens": [512, 1024], "queue_limit": [128, 0]}
    }


def test_the_same_lanes_again_change_nothing() -> None:
    make_world()
    before = (current_delivery().version, AuditEntry.objects.count())

    set_lane("chatty", "short", {"queue_limit": 128}, actor=ACTOR)

    assert (current_delivery().version, AuditEntry.objects.count()) == before


@pytest.mark.parametrize(
    "changes",
    [{"weight": 0}, {"colour": "red"}, {"late_gap_policy": "sometimes"}, {"queue_timeout_s": "long"}],
)
def test_a_wrong_setting_names_its_lane_and_field(changes: dict[str, Any]) -> None:
    make_world()

    with pytest.raises(InvalidGatewaySettings, match="Lane 'short'") as caught:
        set_lane("chatty", "short", changes, actor=ACTOR)

    assert (caught.value.details["lane"], caught.value.details["field"]) == ("short", next(iter(changes)))


def test_a_lane_that_is_not_there_cannot_be_changed() -> None:
    make_world()

    with pytest.raises(NotFound):
        set_lane("chatty", "giant", {"weight": 2}, actor=ACTOR)


def test_a_new_edge_is_checked_against_its_neighbours() -> None:
    make_world()

    with pytest.raises(Invalid, match="no upper edge"):
        set_lane("chatty", "short", {"max_prompt_tokens": None}, actor=ACTOR)
