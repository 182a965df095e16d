"""Capacity of a release in a lane, and whether it carries a weight with its head-room."""

from __future__ import annotations

import pytest

from pool.domain.capacity import Capacity, Flow, Lack, Minute, Room, Source, find_lacks, measure, ratio_of

ROOM = Room(replicas=1, slots_each=4, target_s=0.3, engine_slots_each=256)
DEMAND = Flow(requests=600, busy_s=600.0, span_s=300.0)
"""2 requests/s of 1 s each: 2 in flight."""


def lacks_at(weight: int, room: Room = ROOM, *, minutes: tuple[Minute, ...] = ()) -> list[Lack]:
    capacity = measure(room, Flow(), DEMAND, minutes)
    return find_lacks({"short": room}, {"short": capacity}, {"short": DEMAND}, {"short": weight})


def test_before_it_has_answered_anything_slots_over_the_others_times_are_its_capacity() -> None:
    capacity = measure(ROOM, Flow(), DEMAND)

    assert (capacity.per_s, capacity.source, capacity.samples) == (4.0, Source.SLOTS, 600)


def test_its_own_times_count_once_it_has_enough_of_them() -> None:
    slow = Flow(requests=20, busy_s=80.0, span_s=300.0)

    assert measure(ROOM, slow, DEMAND).per_s == 1.0
    assert measure(ROOM, Flow(19, 76.0, 300.0), DEMAND).per_s == 4.0


def test_without_any_request_nothing_is_known_and_nothing_lacks() -> None:
    capacity = measure(ROOM, Flow(), Flow())

    assert (capacity.per_s, capacity.source, capacity.samples) == (None, Source.UNKNOWN, 0)
    assert find_lacks({"short": ROOM}, {"short": capacity}, {}, {"short": 100}) == []
    assert ratio_of({"short": capacity}, {}, {"short": 100}) is None


def test_minutes_at_full_use_tell_more_than_slots() -> None:
    full = Minute(requests=90, busy_s=200.0, wait_s=90.0, replicas=1)

    capacity = measure(ROOM, Flow(), DEMAND, [full])

    assert (capacity.per_s, capacity.source, capacity.samples) == (1.5, Source.FULL, 90)


def test_a_queue_before_idle_replicas_is_no_sign_of_full_use() -> None:
    burst = Minute(requests=90, busy_s=20.0, wait_s=90.0, replicas=1)

    assert measure(ROOM, Flow(), DEMAND, [burst]).source is Source.SLOTS


def test_what_two_replicas_carried_counts_for_as_many_as_are_ready_now() -> None:
    full = Minute(requests=240, busy_s=400.0, wait_s=240.0, replicas=2)

    assert measure(ROOM, Flow(), DEMAND, [full]).per_s == 2.0


def test_a_minute_within_its_limits_may_have_carried_more_than_the_full_one() -> None:
    full = Minute(requests=60, busy_s=200.0, wait_s=60.0, replicas=1)
    calm = Minute(requests=120, busy_s=150.0, wait_s=0.0, replicas=1)

    capacity = measure(ROOM, Flow(), DEMAND, [full, calm])

    assert (capacity.per_s, capacity.carried_per_s) == (2.0, 2.0)


@pytest.mark.parametrize(("slots", "lacks"), [(3, False), (2, True)])
def test_fc10_a_step_needs_its_demand_with_thirty_percent_head_room(slots: int, lacks: bool) -> None:
    assert bool(lacks_at(100, Room(1, slots, 0.3))) is lacks


def test_a_smaller_weight_needs_less() -> None:
    room = Room(replicas=1, slots_each=2, target_s=0.3)

    assert lacks_at(75, room) == []
    [lack] = lacks_at(80, room)
    assert (lack.lane, lack.carried_per_s, round(lack.needed_per_s, 2)) == ("short", 2.0, 2.08)


def test_no_ready_replica_lacks_everything_that_is_asked() -> None:
    [lack] = lacks_at(1, Room(0, 4, 0.3))

    assert (lack.carried_per_s, lack.replicas_ready) == (0.0, 0)


def test_lanes_that_fit_alone_may_be_too_many_for_the_engine_that_they_share() -> None:
    room = Room(replicas=1, slots_each=4, target_s=0.3, engine_slots_each=4)
    rooms = {"short": room, "long": room}
    demand = dict.fromkeys(rooms, DEMAND)
    capacities = {lane: measure(room, Flow(), DEMAND) for lane in rooms}

    [lack] = find_lacks(rooms, capacities, demand, dict.fromkeys(rooms, 100))

    assert (lack.lane, lack.slots, lack.carried_per_s) == ("", 4, 4.0)
    assert find_lacks(rooms, capacities, demand, dict.fromkeys(rooms, 50)) == []


def test_the_ratio_is_that_of_the_lane_that_has_the_least() -> None:
    capacities = {
        "short": Capacity(4.0, Source.SLOTS, 600, 1, 4),
        "long": Capacity(2.4, Source.SLOTS, 600, 1, 2),
        "idle": Capacity(None, Source.UNKNOWN, 0, 1, 2),
    }
    demand = {"short": DEMAND, "long": DEMAND}

    assert ratio_of(capacities, demand, dict.fromkeys(capacities, 100)) == 1.2
    gone = {"short": Capacity(None, Source.UNKNOWN, 0, 0, 0)}
    assert ratio_of(gone, demand, {"short": 100}) == 0.0
