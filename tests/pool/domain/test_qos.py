"""Tiers and the order of a lane's queue."""

from dataclasses import dataclass

import pytest

from pool.domain.qos import BATCH, STANDARD, VIP, LaneQueue, rank_of, slots_for_tiers


@dataclass(eq=False)
class Ticket:
    tier: str = "standard"
    prompt_tokens: int = 100
    arrived_at_s: float = 0.0


def make_queue(*tickets: Ticket, overdue_s: float = 100.0) -> LaneQueue[Ticket]:
    queue: LaneQueue[Ticket] = LaneQueue(overdue_s=overdue_s)
    for ticket in tickets:
        queue.add(ticket, due_s=ticket.arrived_at_s + 30, until_s=ticket.arrived_at_s + 30)
    return queue


def serve_all(queue: LaneQueue[Ticket], now_s: float = 0.0) -> list[Ticket]:
    served = []
    while (ticket := queue.peek(now_s)) is not None:
        queue.take(ticket, now_s)
        served.append(ticket)
    return served


@pytest.mark.parametrize(("tier", "rank"), [("vip", VIP), ("batch", BATCH), ("other", STANDARD)])
def test_a_tier_has_a_rank(tier: str, rank: int) -> None:
    assert rank_of(tier) == rank


@pytest.mark.parametrize(
    ("slots", "expected"), [(256, (205, 268)), (32, (26, 33)), (4, (4, 4)), (1, (1, 1)), (5, (4, 5))]
)
def test_vip_has_a_reserve_and_a_burst(slots: int, expected: tuple[int, int]) -> None:
    assert slots_for_tiers(slots, vip_reserve_ratio=0.2, burst_ratio=0.05) == expected


def test_somebody_may_be_served_whatever_the_reserve() -> None:
    assert slots_for_tiers(4, vip_reserve_ratio=1.0, burst_ratio=0.0) == (1, 4)


def test_a_higher_tier_goes_first_and_in_a_tier_the_earlier_deadline() -> None:
    batch, second, first, vip = Ticket("batch"), Ticket(arrived_at_s=2), Ticket(arrived_at_s=1), Ticket("vip")

    assert serve_all(make_queue(batch, second, first, vip)) == [vip, first, second, batch]


def test_a_few_waiting_ones_keep_their_order() -> None:
    tickets = [Ticket(prompt_tokens=900 - number, arrived_at_s=number) for number in range(8)]

    assert serve_all(make_queue(*tickets)) == tickets


def test_when_more_than_eight_wait_the_next_sixteen_go_sorted_by_length() -> None:
    tickets = [Ticket(prompt_tokens=900 - number, arrived_at_s=number) for number in range(40)]

    served = serve_all(make_queue(*tickets))

    assert served[:16] == tickets[15::-1]
    assert served[16:32] == tickets[31:15:-1]
    assert served[32:] == tickets[32:]


def test_a_long_one_is_passed_by_fifteen_at_most() -> None:
    long = Ticket(prompt_tokens=4000)
    queue = make_queue(long, *[Ticket(arrived_at_s=number) for number in range(1, 200)])

    assert serve_all(queue).index(long) == 15


def test_vip_goes_ahead_of_a_window_that_was_sorted() -> None:
    queue = make_queue(*[Ticket(arrived_at_s=number) for number in range(12)])
    assert queue.peek(0.0) is not None
    vip = Ticket("vip", arrived_at_s=20)
    queue.add(vip, due_s=50, until_s=50)

    assert queue.peek(0.0) is vip


def test_the_oldest_moves_ahead_when_it_is_overdue() -> None:
    old, vip = Ticket("batch"), Ticket("vip", arrived_at_s=0.4)
    queue = make_queue(old, vip, overdue_s=0.5)

    assert queue.peek(0.5) is vip
    assert queue.peek(0.51) is old


def test_at_most_ten_a_second_move_ahead() -> None:
    batch = [Ticket("batch") for _ in range(60)]
    vips = [Ticket("vip", arrived_at_s=0.9) for _ in range(60)]
    queue = make_queue(*batch, *vips, overdue_s=0.5)

    tiers = []
    for step in range(50):
        ticket = queue.peek(1.0 + step / 100)
        assert ticket is not None
        queue.take(ticket, 1.0 + step / 100)
        tiers.append(ticket.tier)

    assert tiers.count("batch") == 5


def test_one_that_left_is_not_served() -> None:
    tickets = [Ticket(prompt_tokens=100 - number, arrived_at_s=number) for number in range(12)]
    queue = make_queue(*tickets)
    assert queue.peek(0.0) is tickets[11]

    assert queue.remove(tickets[11])
    assert not queue.remove(tickets[11])

    assert tickets[11] not in queue
    assert serve_all(queue) == tickets[10::-1]
    assert len(queue) == 0
    assert queue.oldest_wait_s(9.0) == 0.0


def test_one_that_left_is_not_sorted() -> None:
    tickets = [Ticket(prompt_tokens=100 - number, arrived_at_s=number) for number in range(12)]
    queue = make_queue(*tickets)

    queue.remove(tickets[5])

    assert serve_all(queue) == tickets[:5:-1] + tickets[4::-1]


def test_what_left_does_not_fill_memory() -> None:
    queue = make_queue(Ticket("vip"))
    for number in range(5000):
        ticket = Ticket("batch", arrived_at_s=number)
        queue.add(ticket, due_s=number, until_s=number)
        queue.remove(ticket)

    assert max(len(heap) for heap in queue._heaps) < 100


def test_the_newest_of_a_tier_and_the_expired_are_found() -> None:
    tickets = [Ticket("batch"), Ticket(arrived_at_s=1), Ticket("batch", arrived_at_s=2)]
    queue = make_queue(*tickets)

    assert queue.find_newest(BATCH) is tickets[2]
    assert queue.find_newest(VIP) is None
    assert queue.list_expired(31.0) == tickets[:2]
    assert queue.list_waiting() == tickets
    assert queue.oldest_wait_s(5.0) == 5.0
