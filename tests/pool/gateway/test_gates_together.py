"""One engine behind the gates of several gateway processes, which tell each other what they hold and wait for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.elsewhere import NOBODY, Part, fair_part, read_note
from pool.gateway.refusals import QueueFull
from tests.pool.gateway.gate_world import Replica, Ticket, enter, fill, make_gate, make_routes


class Process:
    """Of ten slots eight are for `standard`."""

    def __init__(self, count: int, *, slots: int = 10, concurrency: int = 100, **settings: Any) -> None:
        self.replica = Replica(slots=slots)
        self.gate = make_gate(
            self.replica,
            process_count=count,
            concurrency=concurrency,
            **{"ttft_target_ms": 10_000, **settings},
        )

    @property
    def in_flight(self) -> int:
        return self.replica.in_flight

    def fill(self, count: int, **fields: Any) -> list[Ticket]:
        return fill(self.gate, count, **{"prompt_tokens": 1, **fields})

    def fill_until_full(self) -> int:
        for accepted in range(100):
            try:
                self.fill(1)
            except QueueFull:
                return accepted
        return 100

    def end(self, tickets: Sequence[Ticket], count: int) -> None:
        running = [ticket for ticket in tickets if ticket.admission is not None]
        for ticket in running[:count]:
            self.gate.leave(ticket, 0.0)


def make_processes(count: int, **settings: Any) -> list[Process]:
    return [Process(count, **settings) for _ in range(count)]


def talk(processes: Sequence[Process]) -> None:
    """As `Neighbours` does five times a second, through JSON."""
    told = [json.loads(json.dumps(one.gate.tell())) for one in processes]
    loads = [(one.replica.in_flight, one.replica.in_flight_tokens) for one in processes]
    for number, process in enumerate(processes):
        others = [load for index, load in enumerate(loads) if index != number]
        process.replica.others_in_flight = sum(load[0] for load in others)
        process.replica.others_tokens = sum(load[1] for load in others)
        notes = [read_note(note) for index, note in enumerate(told) if index != number and note is not None]
        process.gate.hear([note for note in notes if note is not None], 0.0)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Part(0, 0, 0), 8),
        (Part(3, 3, 0), 5),
        (Part(8, 8, 0), 0),
        (Part(0, 0, 1), 4),
        (Part(0, 0, 2), 3),  # 2.7: rounded up
        (Part(5, 5, 1), 2),  # three are left, for two that want them
        (Part(7, 1, 1), 1),  # no more than is free
    ],
)
def test_a_limit_belongs_to_whoever_asks_until_somebody_waits(part: Part, expected: int) -> None:
    assert fair_part(8, part, held=part.held) == expected


def test_one_busy_process_may_use_all_that_the_others_leave() -> None:
    busy, idle, quiet = processes = make_processes(3, concurrency=6)
    quiet.fill(2)
    talk(processes)

    busy.fill(10)

    assert (busy.in_flight, quiet.in_flight, idle.in_flight) == (4, 2, 0)


def test_who_comes_late_gets_an_even_part() -> None:
    first, late, idle = processes = make_processes(3)
    tickets = first.fill(20)
    talk(processes)
    late.fill(5)
    talk(processes)
    assert (first.in_flight, late.in_flight) == (8, 0)

    for _ in range(4):
        first.end(tickets, 1)
        talk(processes)

    assert (first.in_flight, late.in_flight, idle.in_flight) == (4, 4, 0)
    assert first.gate.waiting > 0


def test_the_parts_follow_who_waits() -> None:
    first, late = processes = make_processes(2)
    firsts = first.fill(20)
    talk(processes)
    lates = late.fill(5)
    for _ in range(4):
        talk(processes)
        first.end(firsts, 1)
    talk(processes)
    talk(processes)
    assert late.in_flight == 4

    late.gate.abandon(next(ticket for ticket in lates if ticket.admission is None))
    late.end(lates, 4)
    talk(processes)
    late.end(lates, 1)
    talk(processes)

    assert late.in_flight == 0
    assert first.in_flight == 8


def test_the_lanes_of_one_process_yield_to_a_shorter_one_of_another() -> None:
    long_only, short_only = processes = make_processes(2)
    tickets = long_only.fill(20, lane="long")
    held = long_only.in_flight
    talk(processes)
    short_only.fill(4)
    talk(processes)
    long_only.end(tickets, held)
    talk(processes)

    assert short_only.in_flight == 4


def test_a_limit_learns_from_what_all_processes_have_in_flight() -> None:
    process, other = processes = make_processes(2, slots=32, concurrency=4, adaptive=True)
    other.fill(2)
    talk(processes)

    for ticket in process.fill(2):
        process.gate.first_byte(ticket, 0.1)
        process.gate.leave(ticket, 0.1)

    # Two of its own are half of the limit of four: alone they would say nothing about it.
    limit = process.gate.describe(0.2)["replicas"]["r0"]["lanes"]["short"]
    assert limit["reason"] == "within_target"


def test_a_fixed_limit_is_held_by_all_together() -> None:
    processes = make_processes(3, concurrency=2)
    for process in processes:
        process.fill(3)
        talk(processes)

    assert sum(process.in_flight for process in processes) == 2


def test_one_oversize_request_at_a_time_counts_those_of_others() -> None:
    first, second = processes = make_processes(2)
    for process in processes:
        process.replica.kv_tokens = 1000
        process.gate.configure(make_routes(), ModelSettings(), [process.replica], process_count=2, now_s=0.0)
    enter(first.gate, Ticket(lane="long", prompt_tokens=1, kv_need_tokens=350))
    talk(processes)

    waits = enter(second.gate, Ticket(lane="long", prompt_tokens=1, kv_need_tokens=350))

    assert first.in_flight == 1
    assert waits.replica is None


def test_heavy_prefills_of_all_processes_leave_a_replica_to_short_ones() -> None:
    first, second = processes = make_processes(2, ttft_target_ms=200)
    enter(first.gate, Ticket(lane="long", prompt_tokens=50_000))
    talk(processes)

    place = next(iter(second.gate._places.values()))
    assert (place.held_rank, place.top_rank) == (0, 2)


def test_the_queue_is_bounded_for_all_together() -> None:
    first, second = processes = make_processes(2, slots=1, queue_limit=10)
    talk(processes)
    first.fill(11)  # One runs, ten wait.
    talk(processes)

    accepted = second.fill_until_full()

    # Its share stays, so that whoever filled the queue first does not keep it.
    assert accepted == 5


def test_unknown_others_leave_each_its_share() -> None:
    process, other = processes = make_processes(2)
    other.fill(8)
    talk(processes)
    process.replica.others_in_flight = process.replica.others_tokens = None
    process.gate.hear(None, 0.0)

    process.fill(9)

    assert process.in_flight == 4


def test_memory_is_shared_evenly_while_the_others_are_unknown() -> None:
    replica = Replica(kv_tokens=1000, others_in_flight=None, others_tokens=None)
    gate = make_gate(replica, process_count=2, concurrency=100)

    fill(gate, 8, prompt_tokens=1, kv_need_tokens=100)

    assert replica.in_flight == 4  # of 800 that the reserve leaves, half


@pytest.mark.parametrize(
    "told",
    [None, [], {}, {"waits": {}}, {"waits": {"short": "x"}, "holds": {}}, {"waits": {}, "holds": {"r": 3}}],
)
def test_what_another_version_tells_is_as_if_it_said_nothing(told: object) -> None:
    assert read_note(told) is None


def test_silence_ends_what_was_heard() -> None:
    process, other = processes = make_processes(2)
    other.fill(8)
    talk(processes)
    other.end([], 0)

    process.gate.hear((), 0.0)

    assert next(iter(process.gate._places.values())).elsewhere == NOBODY
