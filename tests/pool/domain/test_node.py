from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.node import (
    GATEWAY_SILENCE,
    MOVES,
    REPLACE_AFTER,
    FreezeNode,
    MoveNode,
    NodeFacts,
    NodePhase,
    NodeWish,
    PoolView,
    WaitNode,
    next_step,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
POOL = PoolView(nodes=3, nodes_missing=1, gateways_reporting=2, watching_for=REPLACE_AFTER)
LEASED = NodeFacts(phase=NodePhase.READY, wish=NodeWish.SERVE, lease_expires_at=T0 + SECOND)
LOST = replace(LEASED, phase=NodePhase.UNREACHABLE, lease_expires_at=T0 - REPLACE_AFTER)


def code_of(node: NodeFacts, pool: PoolView = POOL) -> str:
    decision = next_step(node, pool, now=T0)
    assert isinstance(decision, FreezeNode)
    return decision.code


@pytest.mark.parametrize(
    ("wish", "phase"),
    [
        (NodeWish.SERVE, NodePhase.READY),
        (NodeWish.CORDON, NodePhase.CORDONED),
        (NodeWish.DRAIN, NodePhase.DRAINING),
    ],
)
@pytest.mark.parametrize("before", [*NodePhase])
def test_a_leased_node_takes_the_phase_that_is_wished(
    before: NodePhase, wish: NodeWish, phase: NodePhase
) -> None:
    node = replace(LEASED, phase=before, wish=wish, stale_engines=0)

    decision = next_step(node, POOL, now=T0)

    assert isinstance(decision, WaitNode) if before is phase else decision.to is phase  # type: ignore[union-attr]


def test_a_draining_node_says_what_is_left() -> None:
    node = replace(LEASED, phase=NodePhase.DRAINING, wish=NodeWish.DRAIN, replicas_left=2)

    assert next_step(node, POOL, now=T0) == WaitNode("2 replicas left to drain")
    assert next_step(replace(node, replicas_left=0), POOL, now=T0) == WaitNode("drained")


@pytest.mark.parametrize("phase", [NodePhase.READY, NodePhase.CORDONED, NodePhase.DRAINING])
def test_a_node_without_a_lease_is_unreachable(phase: NodePhase) -> None:
    node = replace(LEASED, phase=phase, lease_expires_at=T0 - SECOND)

    decision = next_step(node, POOL, now=T0)

    assert isinstance(decision, MoveNode)
    assert decision.to is NodePhase.UNREACHABLE


def test_fc04_a_lost_node_is_replaced_only_after_its_time() -> None:
    decision = next_step(LOST, POOL, now=T0)

    assert isinstance(decision, MoveNode)
    assert decision.to is NodePhase.REPLACED
    assert isinstance(next_step(LOST, POOL, now=T0 - SECOND), WaitNode)


@pytest.mark.parametrize(("nodes", "missing"), [(1, 1), (2, 1), (4, 2), (10, 10)])
def test_fc21_the_loop_freezes_when_half_of_the_nodes_are_missing(nodes: int, missing: int) -> None:
    assert code_of(LOST, replace(POOL, nodes=nodes, nodes_missing=missing)) == "too_many_missing"


def test_fc21_the_loop_freezes_after_a_stall_of_its_own() -> None:
    assert code_of(LOST, replace(POOL, watching_for=timedelta(seconds=5))) == "observer_was_blind"


def test_fc21_a_node_that_still_answers_gateways_is_left_alone() -> None:
    assert code_of(replace(LOST, answered_ago=GATEWAY_SILENCE - SECOND)) == "still_serving"
    assert isinstance(next_step(replace(LOST, answered_ago=GATEWAY_SILENCE), POOL, now=T0), MoveNode)


def test_fc21_silence_of_all_gateways_is_no_proof() -> None:
    assert code_of(LOST, replace(POOL, gateways_reporting=0)) == "no_gateway_reports"


def test_a_replaced_node_waits_for_its_return() -> None:
    assert isinstance(next_step(replace(LOST, phase=NodePhase.REPLACED), POOL, now=T0), WaitNode)


@pytest.mark.parametrize("stale_engines", [None, 2])
def test_fc04_a_returned_node_serves_only_when_its_old_engines_are_gone(stale_engines: int | None) -> None:
    node = replace(LEASED, phase=NodePhase.REPLACED, stale_engines=stale_engines)

    assert isinstance(next_step(node, POOL, now=T0), WaitNode)


def test_the_move_says_whether_the_node_returned() -> None:
    back = next_step(replace(LEASED, phase=NodePhase.UNREACHABLE), POOL, now=T0)
    wished = next_step(replace(LEASED, wish=NodeWish.CORDON), POOL, now=T0)

    assert isinstance(back, MoveNode)
    assert back.code == "returned"
    assert isinstance(wished, MoveNode)
    assert wished.code == "wished"


@given(
    st.builds(
        NodeFacts,
        phase=st.sampled_from(NodePhase),
        wish=st.sampled_from(NodeWish),
        lease_expires_at=st.integers(-200, 200).map(lambda s: T0 + s * SECOND),
        answered_ago=st.one_of(st.none(), st.integers(0, 60).map(lambda s: s * SECOND)),
        stale_engines=st.sampled_from([None, 0, 1]),
    ),
    st.builds(
        PoolView,
        nodes=st.integers(1, 9),
        nodes_missing=st.integers(0, 9),
        gateways_reporting=st.integers(0, 2),
        watching_for=st.integers(0, 120).map(lambda s: s * SECOND),
    ),
)
def test_every_decision_is_a_move_that_the_table_allows(node: NodeFacts, pool: PoolView) -> None:
    decision = next_step(node, pool, now=T0)

    if isinstance(decision, MoveNode):
        assert decision.to in MOVES[node.phase]
        assert decision.to is not NodePhase.REPLACED or pool.nodes_missing * 2 < pool.nodes
