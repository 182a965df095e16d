"""What a restriction of the routing table does at the gate, until when, and with which refusal."""

from __future__ import annotations

import time

import pytest

from pool.domain.gateway_settings import ModelSettings
from pool.domain.routing_table import ModelRoute, RestrictionRoute, RoutingTable, from_bytes, to_bytes
from pool.gateway.admission import Gate
from pool.gateway.refusals import Overloaded, Shed
from pool.gateway.restraints import Held
from tests.pool.gateway.gate_world import Replica, Ticket, enter, fill, make_gate, make_routes

UNTIL_S = 100.0


def hold(gate: Gate, replica: Replica, *held: Held, now_s: float = 1.0, process_count: int = 1) -> None:
    gate.configure(
        make_routes(), ModelSettings(), [replica], process_count=process_count, restrictions=held, now_s=now_s
    )


def test_batch_is_shed_and_the_others_go_on() -> None:
    replica = Replica()
    gate = make_gate(replica)
    hold(gate, replica, ("shed_batch", "", 0.0, UNTIL_S))

    with pytest.raises(Shed) as refusal:
        enter(gate, Ticket(tier="batch"), 2.0)

    assert (refusal.value.retry_after_s or 0) >= 1
    assert enter(gate, Ticket(tier="standard"), 2.0).replica is replica
    assert gate.describe(2.0)["lanes"]["short"]["refused"] == {"shed": 1}
    assert gate.describe(2.0)["lanes"]["short"]["restrictions"] == {"shed_batch": 98.0}


def test_waiting_batch_is_shed_too() -> None:
    replica = Replica(slots=1)
    gate = make_gate(replica)
    enter(gate, Ticket(), 0.5)
    batch, standard = (enter(gate, Ticket(tier=tier), 0.5) for tier in ("batch", "standard"))

    hold(gate, replica, ("shed_batch", "short", 0.0, UNTIL_S))

    assert isinstance(batch.error, Shed)
    assert standard.error is None
    assert gate.waiting == 1


def test_a_restriction_of_one_lane_leaves_the_others_alone() -> None:
    replica = Replica()
    gate = make_gate(replica)
    hold(gate, replica, ("close_lane", "mid", 0.0, UNTIL_S))

    with pytest.raises(Shed):
        enter(gate, Ticket(lane="mid"), 2.0)

    assert enter(gate, Ticket(lane="mid", tier="vip"), 2.0).replica is replica
    assert enter(gate, Ticket(lane="short"), 2.0).replica is replica


def test_long_requests_are_refused_as_overload() -> None:
    replica = Replica()
    gate = make_gate(replica)
    hold(gate, replica, ("no_long", "", 0.0, UNTIL_S))

    with pytest.raises(Overloaded):
        enter(gate, Ticket(lane="long", prompt_tokens=20_000), 2.0)

    assert enter(gate, Ticket(lane="mid", prompt_tokens=5000), 2.0).replica is replica


def test_limits_shrink_by_the_ratio() -> None:
    replica = Replica(slots=64)
    gate = make_gate(replica)
    hold(gate, replica, ("admission_ratio", "", 0.8, UNTIL_S))

    short = fill(gate, 40, 2.0, prompt_tokens=1)

    assert sum(ticket.replica is not None for ticket in short) == 26  # 0.8 × 32, begun
    assert gate.describe(2.0)["lanes"]["short"]["limit"] == 25


def test_limits_never_shrink_to_nothing() -> None:
    replica = Replica(slots=64)
    gate = make_gate(replica)
    hold(gate, replica, ("admission_ratio", "", 0.01, UNTIL_S))

    admitted = [ticket.replica for ticket in fill(gate, 3, 2.0, prompt_tokens=1)]

    assert admitted == [replica, None, None]


def test_several_processes_share_the_smaller_limit() -> None:
    replica = Replica(slots=64)
    gate = make_gate(replica, process_count=2)
    hold(gate, replica, ("admission_ratio", "", 0.5, UNTIL_S), process_count=2)

    short = fill(gate, 40, 2.0, prompt_tokens=1)

    assert sum(ticket.replica is not None for ticket in short) == 16


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -1.0])
def test_a_ratio_that_is_none_changes_nothing(value: float) -> None:
    replica = Replica(slots=64)
    gate = make_gate(replica)
    hold(gate, replica, ("admission_ratio", "", value, UNTIL_S), ("not_known_yet", "", 1.0, UNTIL_S))

    assert gate.describe(2.0)["lanes"]["short"]["limit"] == 32


def test_it_ends_by_itself_without_a_new_table() -> None:
    replica = Replica(slots=64)
    gate = make_gate(replica)
    hold(gate, replica, ("shed_batch", "", 0.0, UNTIL_S), ("admission_ratio", "", 0.5, UNTIL_S))

    gate.tick(UNTIL_S)

    assert enter(gate, Ticket(tier="batch"), UNTIL_S).replica is replica
    described = gate.describe(UNTIL_S)["lanes"]["short"]
    assert (described["limit"], described["restrictions"]) == (32, {})


def test_a_table_without_it_takes_it_back() -> None:
    replica = Replica()
    gate = make_gate(replica)
    hold(gate, replica, ("close_lane", "", 0.0, UNTIL_S))

    hold(gate, replica, now_s=2.0)

    assert enter(gate, Ticket(), 2.0).replica is replica


def test_restrictions_go_through_the_bytes_of_the_table() -> None:
    held = (RestrictionRoute("admission_ratio", "short", 0.8, until=time.time() + 60),)
    model = ModelRoute("smollm2", (), None, (), 0, restrictions=held)
    table = RoutingTable("here", 1, 1, (model,), ())

    assert from_bytes(to_bytes(table, "secret"), "secret") == table
