"""Capacity and demand as they come out of cells, replicas and profiles."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.domain.capacity import Source
from pool.domain.cells import Cell, SeriesKey
from pool.models import Lane, Model
from pool.queries.capacity import find_lack, load_capacity, load_demand
from pool.telemetry.store import add_cells
from tests.factories import T0, make_gateway, make_model, make_node, make_profile, make_release, make_replica

pytestmark = pytest.mark.django_db
NOW = T0 + timedelta(seconds=3)


def make_two(**values: Any) -> Model:
    model = make_model()
    node = make_node()
    for number in (1, 2):
        release = make_release(model, number=number, **values)
        make_replica(release, node=node, id=f"rep-{number}", routed=True)
    return model


def add_traffic(
    *, release: int = 1, lane: str = "short", per_s: int = 2, request_s: float = 1.0, wait_s: float = 0.0,
    seconds: int = 300, replica: str = "",
) -> None:  # fmt: skip
    """Up to T0, in cells of ten seconds."""
    key = SeriesKey("smollm2", release, replica or f"rep-{release}", lane, "standard")
    count = per_s * 10
    sums = {"e2e_s": count * (request_s + wait_s), "queue_s": count * wait_s}
    cells = {
        (key, T0 - timedelta(seconds=10 * step)): Cell(counts={"requests": count}, sums=sums)
        for step in range(1, seconds // 10 + 1)
    }
    add_cells(cells)


def test_demand_is_the_higher_of_the_last_minute_and_the_last_five() -> None:
    add_traffic(per_s=2)
    add_traffic(per_s=4, release=2, seconds=60)

    told = load_demand(["smollm2"], NOW)["smollm2"]["short"]

    assert (told.total.per_s, told.total.in_flight) == (6.0, 6.0)
    assert told.by_release[2].requests == 240


def test_requests_that_no_replica_saw_are_no_demand_on_replicas() -> None:
    key = SeriesKey("smollm2", 0, "", "short", "standard")
    add_cells({(key, T0 - timedelta(seconds=20)): Cell(counts={"requests": 50, "refused": 50})})

    assert load_demand(["smollm2"], NOW) == {}


def test_a_candidate_that_was_never_measured_is_taken_by_its_slots() -> None:
    make_two()
    add_traffic(per_s=2)

    capacity = load_capacity("smollm2", 2, NOW)

    assert list(capacity) == ["short", "mid", "long"]
    assert (capacity["short"].per_s, capacity["short"].source) == (8.0, Source.SLOTS)
    assert (capacity["short"].samples, capacity["long"].per_s) == (600, None)


def test_a_release_that_does_not_exist_has_no_capacity() -> None:
    make_two()

    assert load_capacity("smollm2", 7, NOW) == {}
    assert find_lack("smollm2", 7, {"short": 100}, NOW) == ""


def test_a_healthy_demo_lacks_nothing() -> None:
    make_two()
    add_traffic(per_s=4)

    assert find_lack("smollm2", 2, {"short": 100, "mid": 100, "long": 100}, NOW) == ""


def test_fc10_too_few_slots_are_said_with_their_source() -> None:
    make_two()
    Lane.objects.filter(name="short").update(concurrency=2)
    add_traffic(per_s=2)

    words = find_lack("smollm2", 2, {"short": 100}, NOW)

    assert words == (
        "release 2 carries about 2.0 requests/s in lane short (2 slots of 1 ready replicas ÷ the measured time per "
        "request, 600 requests): 100 % of the present 2.0/s with 30 % head-room needs 2.6/s"
    )
    assert find_lack("smollm2", 2, {"short": 50}, NOW) == ""


def test_a_candidate_at_full_use_is_held_to_what_it_carried() -> None:
    make_two()
    add_traffic(per_s=8)
    add_traffic(per_s=4, release=2, request_s=2.0, wait_s=1.0)

    words = find_lack("smollm2", 2, {"short": 100}, NOW)

    assert "carries about 4.0 requests/s in lane short (measured at full use, 1200 requests)" in words


def test_a_lane_without_a_ready_replica_is_named() -> None:
    model = make_model()
    make_release(model, number=2, lanes=("short", "mid", "long"))
    add_traffic()

    assert "release 2 has no ready replica in lane short" in find_lack("smollm2", 2, {"short": 5}, NOW)
    assert find_lack("smollm2", 2, {"short": 0}, NOW) == ""


def tell_limits(limits: dict[str, Any], *, seen_at: datetime = T0) -> None:
    make_gateway(f"gw-{len(limits)}", seen_at=seen_at, report={"limits": limits})


def test_slots_are_what_gateways_have_learned_at_its_own_replicas() -> None:
    make_two()
    tell_limits(
        {
            "rep-2": {"short": [3.9, "over_target"], "mid": [8.0, "start"]},
            "rep-1": {"short": [30.0, "all_slots"]},
        }
    )

    told = load_capacity("smollm2", 2, NOW)

    assert (told["short"].slots, told["mid"].slots) == (3, 8)


def test_before_they_have_those_of_the_others_stand_in_and_never_lower_what_was_set() -> None:
    make_two()
    tell_limits({"rep-1": {"short": [30.0, "within_target"], "mid": [2.0, "over_target"]}})

    told = load_capacity("smollm2", 2, NOW)

    assert (told["short"].slots, told["mid"].slots) == (30, 8)


def test_what_a_silent_gateway_or_another_version_tells_is_not_believed() -> None:
    make_two()
    tell_limits({"rep-2": {"short": [30.0, "within_target"]}}, seen_at=T0 - timedelta(minutes=1))
    tell_limits({"rep-2": "odd", "rep-1": {"short": 7}})

    assert load_capacity("smollm2", 2, NOW)["short"].slots == 8


def test_engine_slots_bound_what_the_lane_allows() -> None:
    make_two(profile=make_profile("tight", settings={"max_num_seqs": 1}))
    add_traffic(per_s=2)

    assert load_capacity("smollm2", 2, NOW)["short"].slots == 1


def test_the_number_of_queries_does_not_grow(django_assert_num_queries: Any) -> None:
    make_two()
    add_traffic()

    with django_assert_num_queries(6):
        find_lack("smollm2", 2, {"short": 100}, NOW)
