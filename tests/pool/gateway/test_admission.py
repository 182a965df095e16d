"""Who is let in, who waits and who is refused."""

from __future__ import annotations

import pytest

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.holds import limit_holds
from pool.gateway.openai import NoReadyReplica, RequestTooLarge
from pool.gateway.refusals import ContextLengthExceeded
from tests.pool.gateway.gate_world import (
    OpenBreaker,
    Replica,
    Ticket,
    enter,
    fill,
    make_gate,
    teach_speed,
)

# Room ---------------------------------------------------------------------------------------------------------


def test_a_request_gets_a_slot_at_once_and_gives_it_back() -> None:
    replica = Replica()
    gate = make_gate(replica)

    ticket = enter(gate, Ticket(prompt_tokens=1000, kv_need_tokens=1200))
    assert ticket.replica is replica
    assert replica.counts() == (1, 1, 1200, 1000, 0)
    gate.first_byte(ticket, 0.1)
    assert replica.prefill_tokens == 0
    gate.leave(ticket, 1.0)
    gate.leave(ticket, 1.0)
    gate.first_byte(ticket, 1.0)

    assert replica.counts() == (0, 0, 0, 0, 0)


def test_a_lane_has_its_limit_and_the_next_one_waits_for_a_place() -> None:
    gate = make_gate(Replica())
    first, second, third = fill(gate, 3, lane="long")

    assert (first.replica is not None, second.replica is not None, third.replica) == (True, True, None)
    assert gate.waiting == 1
    gate.leave(first, 1.0)

    assert third.replica is not None
    assert third.admitted_at_s == 1.0
    assert gate.waiting == 0


def test_vip_has_a_reserve_and_a_burst() -> None:
    gate = make_gate(Replica(slots=20), concurrency=100)

    standard = fill(gate, 20)
    vip = fill(gate, 6, tier="vip")

    assert sum(ticket.replica is not None for ticket in standard) == 16
    assert sum(ticket.replica is not None for ticket in vip) == 5


def test_an_unknown_number_of_slots_leaves_the_lanes_limits() -> None:
    gate = make_gate(Replica(slots=None))

    assert sum(ticket.replica is not None for ticket in fill(gate, 40)) == 32


def test_longer_lanes_leave_slots_to_shorter_ones_that_have_traffic() -> None:
    replicas = [Replica()]
    gate = make_gate(*replicas, concurrency=100)
    teach_speed(gate, replicas)
    gate.tick(1.0)

    mid = fill(gate, 40, 1.0, lane="mid", prompt_tokens=1, stream=False)

    # 26 for this tier, less an eighth of 32 for `short`.
    assert sum(ticket.replica is not None for ticket in mid) == 22


def test_kv_tokens_are_kept_in_reserve() -> None:
    gate = make_gate(Replica(kv_tokens=10_000))

    tickets = fill(gate, 5, kv_need_tokens=2500)

    assert [ticket.replica is not None for ticket in tickets] == [True, True, True, False, False]


def test_memory_that_only_the_gauge_shows_counts() -> None:
    replica = Replica(kv_tokens=10_000, kv_used_ratio=0.6, gauges_at_s=1.0, in_flight=0)
    gate = make_gate(replica)
    enter(gate, Ticket(kv_need_tokens=500), 1.0)
    gate.tick(1.5)

    assert enter(gate, Ticket(kv_need_tokens=2500), 1.5).replica is None
    replica.gauges_at_s = None
    gate.tick(2.0)
    assert gate.waiting == 0


def test_a_request_alone_may_need_more_than_the_budget() -> None:
    gate = make_gate(Replica(kv_tokens=10_000))

    assert enter(gate, Ticket(kv_need_tokens=9500)).replica is not None


def test_of_a_large_part_of_the_memory_one_runs_at_a_time_as_long() -> None:
    replica = Replica(kv_tokens=100_000)
    gate = make_gate(replica)

    first, second = fill(gate, 2, lane="short", kv_need_tokens=31_000)

    assert replica.lane_in_flight == {"long": 1}
    assert replica.long_in_flight == 1
    assert second.replica is None
    assert first.lane == "short"
    gate.leave(first, 1.0)
    assert second.replica is replica


def test_a_large_request_is_refused_only_if_the_operator_says_so() -> None:
    gate = make_gate(Replica(kv_tokens=100_000), model=ModelSettings(oversize="refuse"))

    with pytest.raises(RequestTooLarge):
        enter(gate, Ticket(kv_need_tokens=31_000))
    assert enter(gate, Ticket(kv_need_tokens=30_000)).replica is not None


def test_who_waited_long_for_memory_gets_it_before_others_take_it() -> None:
    gate = make_gate(Replica(kv_tokens=10_000), queue_timeout_s=1000.0)
    running = fill(gate, 3, kv_need_tokens=2500)
    large = enter(gate, Ticket(lane="mid", kv_need_tokens=2900))

    now_s = 0.0
    while large.replica is None and now_s < 60.0:
        now_s += 1.0
        gate.tick(now_s)
        gate.leave(running.pop(0), now_s)
        running += fill(gate, 1, now_s, kv_need_tokens=2000)
        running = [ticket for ticket in running if ticket.replica is not None]

    assert large.replica is not None


# Who may serve ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context_tokens", "is_served"), [(2047, True), (2048, True), (2049, False)])
def test_what_does_not_fit_the_context_is_told_so(context_tokens: int, is_served: bool) -> None:  # FC-39
    gate = make_gate(Replica(max_model_len=2048))
    ticket = Ticket(context_tokens=context_tokens)

    assert gate.can_serve(ticket, 0.0) is is_served
    if not is_served:
        with pytest.raises(ContextLengthExceeded):
            enter(gate, ticket)


def test_a_prompt_goes_only_where_it_fits() -> None:  # FC-39
    small, large = Replica("small", max_model_len=2048), Replica("large", max_model_len=8192)
    gate = make_gate(small, large)

    assert {ticket.replica.id for ticket in fill(gate, 10, context_tokens=3000)} == {"large"}


def test_a_replica_of_another_lane_an_open_breaker_and_a_tried_one_are_passed() -> None:
    replicas = [Replica("other", lane="long"), Replica("broken", breaker=OpenBreaker()), Replica("tried")]
    gate = make_gate(*replicas)

    with pytest.raises(NoReadyReplica):
        enter(gate, Ticket(tried=[replicas[2]]))
    assert enter(gate, Ticket()).replica is replicas[2]


def test_a_lane_that_is_not_known_counts_as_the_longest() -> None:
    replica = Replica()

    enter(make_gate(replica), Ticket(lane="gone"))

    assert replica.lane_in_flight == {"long": 1}


# Order --------------------------------------------------------------------------------------------------------


def test_an_engine_gets_no_more_prefill_than_it_does_within_the_target() -> None:
    replicas = [Replica()]
    gate = make_gate(*replicas)
    teach_speed(gate, replicas)

    tickets = fill(gate, 10, 1.0, prompt_tokens=1020)

    # Two share a step; with a third its first token would come after more than 300 ms.
    assert [ticket.replica is not None for ticket in tickets] == [True, True] + [False] * 8
    gate.tick(1.02)
    assert sum(ticket.replica is not None for ticket in tickets) == 2
    gate.tick(1.09)
    assert sum(ticket.replica is not None for ticket in tickets) == 3


def test_a_plain_answer_is_thought_to_be_prefilled_in_time() -> None:
    replicas = [Replica()]
    gate = make_gate(*replicas)
    teach_speed(gate, replicas)

    fill(gate, 1, 1.0, stream=False, prompt_tokens=1000)
    assert replicas[0].prefill_tokens == 1000
    gate.tick(1.3)

    assert replicas[0].prefill_tokens == 0


def test_a_first_byte_says_that_plain_ones_before_it_are_prefilled() -> None:
    replicas = [Replica()]
    gate = make_gate(*replicas)
    teach_speed(gate, replicas)
    fill(gate, 1, 1.0, stream=False)
    stream = enter(gate, Ticket(), 1.0)

    gate.first_byte(stream, 1.2)

    assert replicas[0].prefill_tokens == 0


def test_long_prompts_never_hold_all_replicas_while_short_ones_come() -> None:  # FC-37
    replicas = [Replica(f"r{number}") for number in range(4)]
    gate = make_gate(*replicas)
    teach_speed(gate, replicas)
    gate.tick(0.5)

    long = fill(gate, 6, 1.0, lane="long", prompt_tokens=60_000)
    short = fill(gate, 3, 1.0)

    assert len({ticket.replica for ticket in long} - {None}) < 4
    assert all(ticket.replica is not None for ticket in short)
    assert not {ticket.replica for ticket in short} & {ticket.replica for ticket in long}


def test_long_prompts_leave_one_replica_even_if_nobody_shorter_came_yet() -> None:  # FC-37
    replicas = [Replica("a"), Replica("b")]
    gate = make_gate(*replicas)

    long = fill(gate, 2, lane="long", prompt_tokens=60_000)
    short = fill(gate, 3, prompt_tokens=300)

    assert [ticket.replica is not None for ticket in long] == [True, False]
    assert {ticket.replica for ticket in short} == set(replicas) - {long[0].replica}


def test_long_prompts_get_the_last_replica_when_they_waited_and_nobody_shorter_came() -> None:
    replicas = [Replica(f"r{number}") for number in range(4)]
    gate = make_gate(*replicas)

    long = fill(gate, 4, lane="long", prompt_tokens=60_000)
    gate.tick(9.9)
    waiting = gate.waiting
    gate.tick(10.2)

    assert waiting == 1
    assert len({ticket.replica for ticket in long}) == 4


def test_lanes_that_wait_share_by_weight() -> None:
    gate = make_gate(Replica(slots=1), concurrency=1)
    running = enter(gate, Ticket())
    waiting = fill(gate, 70, lane="short") + fill(gate, 70, lane="mid") + fill(gate, 70, lane="long")

    served = []
    for _ in range(70):
        gate.leave(running, 0.1)
        running = next(ticket for ticket in waiting if ticket.replica and ticket not in served)
        served.append(running)

    counts = [sum(ticket.lane == lane for ticket in served) for lane in ("short", "mid", "long")]
    assert counts == pytest.approx([40, 20, 10], abs=2)


def test_an_idle_lane_saves_up_nothing() -> None:
    gate = make_gate(Replica(slots=1), concurrency=1)
    running = enter(gate, Ticket())
    for _ in range(200):
        gate.leave(running, 0.1)
        running = enter(gate, Ticket(), 0.1)
    waiting = fill(gate, 20, lane="short") + fill(gate, 20, lane="long")

    served: list[Ticket] = []
    for _ in range(10):
        gate.leave(running, 0.2)
        running = next(ticket for ticket in waiting if ticket.replica and ticket not in served)
        served.append(running)

    assert sum(ticket.lane == "long" for ticket in served) <= 3


def test_longer_lanes_start_nothing_while_short_ones_are_overdue() -> None:
    replica = Replica(slots=20)
    gate = make_gate(replica, concurrency=100)
    running = fill(gate, 16)
    waiting = fill(gate, 2)
    mid = enter(gate, Ticket(lane="mid"), 0.1)
    vip = enter(gate, Ticket(lane="mid", tier="vip"), 0.1)

    gate.tick(0.2)
    assert (mid.replica, vip.replica) == (None, replica)
    other = enter(gate, Ticket(lane="mid", tier="vip"), 0.6)
    gate.tick(0.7)
    assert other.replica is None
    gate.leave(running[0], 0.8)
    gate.leave(running[1], 0.8)

    assert [ticket.replica for ticket in waiting] == [replica, None]


def test_a_vip_takes_its_reserve_past_those_who_wait() -> None:
    gate = make_gate(Replica(slots=10), concurrency=100)
    fill(gate, 9)

    assert enter(gate, Ticket(tier="vip")).replica is not None


@pytest.mark.parametrize(
    ("replicas", "shorter", "longer", "limit"),
    [
        (1, 0.5, 0.5, 1),
        (1, 0.0, 0.5, 1),
        (4, 0.0, 3.0, 3),
        (4, 1.5, 1.5, 2),
        (4, 0.1, 0.1, 2),
        (4, 0.7, 1.3, 2),
        (4, 0.2, 3.0, 3),
        (4, 3.5, 0.1, 1),
        (2, 1.0, 1.0, 1),
    ],
)
def test_longer_lanes_hold_replicas_by_their_load(
    replicas: int, shorter: float, longer: float, limit: int
) -> None:
    assert limit_holds(replicas, shorter_load=shorter, longer_load=longer) == limit
