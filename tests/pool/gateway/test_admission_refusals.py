"""Who is refused, shed or moved, and that nothing of it leaves a count behind."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.openai import GatewayError
from pool.gateway.refusals import Overloaded, QueueFull, QueueTimeout, Shed
from tests.pool.gateway.gate_world import Replica, Ticket, enter, fill, make_gate, make_routes

# Refusals -----------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    gate = make_gate(Replica(slots=1), queue_limit=3, concurrency=1)
    fill(gate, 4)

    with pytest.raises(QueueFull) as caught:
        enter(gate, Ticket())

    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s >= 1
    assert gate.describe(0.0)["lanes"]["short"]["refused"] == {"queue_full": 1}


def test_batch_is_shed_first() -> None:
    gate = make_gate(Replica(slots=1), queue_limit=4, concurrency=1)
    fill(gate, 1)
    batch = fill(gate, 2, tier="batch")

    with pytest.raises(Shed):
        enter(gate, Ticket(tier="batch"))
    standard = fill(gate, 3)

    assert isinstance(batch[1].error, Shed)
    assert batch[0].error is None
    assert all(ticket.error is None for ticket in standard)
    assert gate.waiting == 4


def test_a_queue_of_none_refuses_what_finds_no_room() -> None:
    gate = make_gate(Replica(slots=1), queue_limit=0, concurrency=1)
    fill(gate, 1)

    for tier, kind in (("standard", QueueFull), ("batch", Shed)):
        with pytest.raises(kind):
            enter(gate, Ticket(tier=tier))


def test_who_waited_too_long_is_refused() -> None:
    gate = make_gate(Replica(slots=1), queue_timeout_s=5.0, concurrency=1)
    fill(gate, 1)
    late, hasty = enter(gate, Ticket()), enter(gate, Ticket(deadline_s=2.0))

    gate.tick(2.0)
    refused_first = [type(late.error), type(hasty.error)]
    gate.tick(4.9)
    waiting = gate.waiting
    gate.tick(5.0)

    assert refused_first == [type(None), QueueTimeout]
    assert waiting == 1
    assert isinstance(late.error, QueueTimeout)
    assert gate.waiting == 0


def test_who_went_away_leaves_no_trace() -> None:
    gate = make_gate(Replica(slots=1), concurrency=1)
    running, gone, waiting = fill(gate, 3)

    gate.abandon(gone)
    gate.abandon(gone)
    gate.abandon(running)
    gate.leave(running, 1.0)

    assert (gone.replica, gone.error) == (None, None)
    assert waiting.replica is not None
    assert gate.waiting == 0


@pytest.mark.parametrize(
    ("ratio", "served"),
    [
        (0.80, {"short", "mid", "long", "vip mid"}),
        (0.86, {"short", "mid", "vip mid"}),
        (0.96, {"short", "vip mid"}),
    ],
)
def test_watermarks_refuse_the_longer_lanes(ratio: float, served: set[str]) -> None:
    replica = Replica(kv_used_ratio=ratio, gauges_at_s=1.0)
    gate = make_gate(replica)
    gate.tick(1.0)

    let_in = set()
    for name in ("short", "mid", "long", "vip mid"):
        tier, _, lane = name.rpartition(" ")
        try:
            enter(gate, Ticket(lane=lane, tier=tier or "standard"), 1.0)
            let_in.add(name)
        except Overloaded:
            continue

    assert let_in == served


def test_one_full_replica_is_passed_while_others_have_memory() -> None:
    full, free = Replica("full", kv_used_ratio=0.9, gauges_at_s=1.0), Replica("free")
    gate = make_gate(full, free)
    gate.tick(1.0)

    assert {ticket.replica for ticket in fill(gate, 2, 1.0, lane="long")} == {free}


def test_a_gauge_that_is_missing_is_no_empty_cache() -> None:  # FC-29
    replica = Replica(kv_tokens=100_000, kv_used_ratio=0.01, gauges_at_s=0.0)
    gate = make_gate(replica)
    fill(gate, 3, kv_need_tokens=26_000)

    gate.tick(50.0)

    assert gate.describe(50.0)["replicas"]["r0"]["watermark"]["source"] == "estimate"
    assert gate.describe(50.0)["replicas"]["r0"]["watermark"]["level"] == "warn"


def test_growing_queues_refuse_batch_and_then_standard() -> None:
    gate = make_gate(Replica(slots=1), queue_timeout_s=9000.0, concurrency=1)
    fill(gate, 1)
    refused: dict[str, float] = {}
    for second in range(900):
        if second == 1:
            fill(gate, 12, 1.0)
        elif second % 15 == 0:
            fill(gate, 1, float(second), tier="vip")
        gate.tick(float(second))
        for tier in ("batch", "standard"):
            probe = Ticket(tier=tier)
            try:
                enter(gate, probe, float(second))
                gate.abandon(probe)
            except Shed:
                refused.setdefault(tier, second)

    assert 580 <= refused["batch"] < refused["standard"]
    assert gate.describe(900.0)["lanes"]["short"]["growth"]["stage"] == "no_standard"
    assert enter(gate, Ticket(tier="vip"), 900.0).error is None


# Shadow -------------------------------------------------------------------------------------------------------


def test_a_shadow_request_takes_an_idle_slot_only() -> None:
    replica = Replica(slots=2)
    gate = make_gate(replica, concurrency=2)

    shadow = Ticket()
    assert gate.enter_shadow(shadow, 0.0) is replica
    assert gate.enter_shadow(Ticket(), 0.0) is None
    gate.first_byte(shadow, 0.1)
    assert gate.enter_shadow(Ticket(), 0.1) is replica
    fill(gate, 1, 0.1)
    assert gate.enter_shadow(Ticket(), 0.1) is None
    gate.leave(shadow, 0.2)

    assert replica.in_flight == 2


# Changes ------------------------------------------------------------------------------------------------------


def test_new_replicas_serve_who_waits() -> None:
    first, second = Replica("a", slots=1), Replica("b", slots=1)
    gate = make_gate(first, concurrency=1)
    running, waiting = fill(gate, 2)

    gate.configure(make_routes(concurrency=1), ModelSettings(), [first, second], now_s=1.0)

    assert running.replica is first
    assert waiting.replica is second


def test_a_lane_and_a_replica_that_go_leave_no_counts() -> None:
    first, second = Replica("a", slots=1), Replica("b", slots=1, max_model_len=10)
    gate = make_gate(first, concurrency=1, queue_limit=1)
    running = enter(gate, Ticket(lane="mid"))
    waiting = [enter(gate, Ticket(lane=lane)) for lane in ("short", "mid", "long")]

    gate.configure(make_routes(concurrency=1, queue_limit=1)[2:], ModelSettings(), [second], now_s=1.0)
    gate.leave(running, 2.0)

    assert all(isinstance(ticket.error, GatewayError) for ticket in waiting)
    assert first.counts() == (0, 0, 0, 0, 0)
    assert gate.waiting == 0


def test_an_admission_outlives_its_lane_and_its_replica() -> None:
    first, second = Replica("a"), Replica("b")
    gate = make_gate(first, adaptive=True)
    ticket = enter(gate, Ticket(lane="mid"))

    gate.configure(make_routes()[:1], ModelSettings(), [first], now_s=1.0)
    gate.first_byte(ticket, 1.5)
    gate.configure(make_routes(), ModelSettings(), [second], now_s=2.0)
    gate.leave(ticket, 3.0)

    assert first.counts() == (0, 0, 0, 0, 0)


def test_a_learnt_limit_outlives_a_new_table() -> None:
    replica = Replica()
    gate = make_gate(replica, adaptive=True)
    for ticket in fill(gate, 2, lane="long"):
        gate.first_byte(ticket, 0.1)

    gate.configure(make_routes(adaptive=True), ModelSettings(), [replica], now_s=1.0)

    assert gate.describe(1.0)["lanes"]["long"]["limit"] == 3


def test_memory_kept_on_a_replica_that_goes_is_kept_elsewhere() -> None:
    first, second = Replica("a", kv_tokens=10_000), Replica("b", kv_tokens=10_000)
    gate = make_gate(first, queue_timeout_s=1000.0)
    fill(gate, 3, kv_need_tokens=2600)
    waiting = enter(gate, Ticket(kv_need_tokens=2900))
    gate.tick(5.0)
    second.in_flight_tokens = 7_500

    gate.configure(make_routes(), ModelSettings(), [second], now_s=6.0)
    gate.tick(7.0)

    assert waiting.replica is None
    second.in_flight_tokens = 0
    gate.tick(8.0)
    assert waiting.replica is second


def test_a_turn_that_fails_at_once_goes_to_the_next() -> None:
    class Failing(Ticket):
        def on_admitted(self, replica: Any) -> None:
            super().on_admitted(replica)
            gate.leave(self, 1.0)

    gate = make_gate(Replica(slots=1), concurrency=1)
    running = enter(gate, Ticket())
    failing, last = Failing(), Ticket()
    for ticket in (failing, last):
        gate.enter(ticket, 0.0)

    gate.leave(running, 1.0)

    assert failing.replica is not None
    assert last.replica is not None


def test_a_prompt_that_is_all_cached_waits_behind_nothing() -> None:
    replica = Replica()
    gate = make_gate(replica)
    ticket = Ticket()
    ticket.uncached_tokens = 0

    enter(gate, ticket)

    assert replica.prefill_tokens == 0


def test_several_processes_share_slots_limits_and_queue() -> None:
    fresh, stale = Replica("fresh", others_in_flight=20), Replica("stale", others_in_flight=None)

    for replica, expected in ((fresh, 6), (stale, 13)):
        gate = make_gate(replica, process_count=2, concurrency=100, queue_limit=10)
        tickets = [gate.enter(Ticket(), 0.0) for _ in range(expected + 5)]
        assert sum(one is not None for one in tickets) == expected
        with pytest.raises(QueueFull):
            gate.enter(Ticket(), 0.0)


def test_the_description_is_json() -> None:
    gate = make_gate(Replica(kv_tokens=100_000))
    fill(gate, 40)

    shown = json.loads(json.dumps(gate.describe(1.0)))

    assert shown["lanes"]["short"]["queued"] == gate.waiting
    assert shown["lanes"]["long"]["limit"] == 2
    assert shown["replicas"]["r0"]["lanes"]["short"]["reason"] == "start"
    assert shown["replicas"]["r0"]["prefill_tokens_per_s"] is None


# Leaks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_no_count_is_left_after_random_lives(seed: int) -> None:  # FC-24
    draw = random.Random(seed)
    replicas = [Replica(f"r{number}", slots=6, kv_tokens=120_000) for number in range(3)]
    gate = make_gate(*replicas, adaptive=True, queue_limit=8, queue_timeout_s=2.0)
    live: list[Ticket] = []
    refused, now_s = 0, 0.0
    acts: list[Callable[[Ticket], Any]] = [
        lambda ticket: gate.first_byte(ticket, now_s),
        lambda ticket: gate.leave(ticket, now_s),
        gate.abandon,
    ]
    for number in range(5000):
        now_s = number / 50
        ticket = Ticket(
            lane=draw.choice(["short", "mid", "long"]),
            tier=draw.choice(["vip", "standard", "batch"]),
            prompt_tokens=draw.choice([50, 1000, 9000, 50_000]),
            stream=draw.random() < 0.7,
            tried=draw.sample(replicas, draw.choice([0, 0, 0, 1])),
        )
        try:
            live.append(enter(gate, ticket, now_s))
        except GatewayError:
            refused += 1
        for _ in range(2):
            draw.choice(acts)(draw.choice(live or [ticket]))
        if number % 5 == 0:
            gate.tick(now_s)
        assert min(min(replica.counts()) for replica in replicas) >= 0

    for ticket in live:
        gate.abandon(ticket)
        gate.leave(ticket, now_s)
    gate.tick(now_s + 100)
    for ticket in live:
        gate.leave(ticket, now_s + 100)

    assert refused > 100
    assert gate.waiting == 0
    assert [replica.counts() for replica in replicas] == [(0, 0, 0, 0, 0)] * 3
    assert {lane["in_flight"] for lane in gate.describe(0.0)["lanes"].values()} == {0}
    assert all(ticket.admission is None for ticket in live)
