"""Life of a node in the pool: its phases and what may move it on.

A lost lease never stops an engine; only `replaced` lets the pool start its replicas elsewhere, and only
when the observer has good reason to believe that the node, and not the observer, is the one that went away.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

REPLACE_AFTER = timedelta(seconds=60)
"""Over for this long, and watched without a gap for this long: a database restart must not count against
a node."""
GATEWAY_SILENCE = timedelta(seconds=10)
"""An engine that answered a gateway within this time serves, whatever its node's lease says."""


class NodePhase(StrEnum):
    READY = "ready"
    """Lease valid, takes new replicas. Moved on by its own lease or by an operator."""
    CORDONED = "cordoned"
    """Keeps what it runs and takes nothing new. Moved on by an operator."""
    DRAINING = "draining"
    """Takes nothing new; its replicas are drained and placed elsewhere. Moved on by an operator's return."""
    UNREACHABLE = "unreachable"
    """Lease over. Its engines are left alone and stay routed. Moved on by its return or, once safe, to
    replaced."""
    REPLACED = "replaced"
    """Its replicas were given a new generation elsewhere. Moved on by its return, once no old engine is
    left on it."""


class NodeWish(StrEnum):
    SERVE = "serve"
    """The node should take replicas. Set by an operator's return, and at registration."""
    CORDON = "cordon"
    """The node should take nothing new. Set by an operator."""
    DRAIN = "drain"
    """The node should become empty. Set by an operator."""


_SERVING = frozenset({NodePhase.READY, NodePhase.CORDONED, NodePhase.DRAINING})

MOVES: dict[NodePhase, frozenset[NodePhase]] = {
    NodePhase.READY: frozenset({NodePhase.CORDONED, NodePhase.DRAINING, NodePhase.UNREACHABLE}),
    NodePhase.CORDONED: frozenset({NodePhase.READY, NodePhase.DRAINING, NodePhase.UNREACHABLE}),
    NodePhase.DRAINING: frozenset({NodePhase.READY, NodePhase.CORDONED, NodePhase.UNREACHABLE}),
    NodePhase.UNREACHABLE: _SERVING | {NodePhase.REPLACED},
    NodePhase.REPLACED: _SERVING,
}

_WISHED = {
    NodeWish.SERVE: NodePhase.READY,
    NodeWish.CORDON: NodePhase.CORDONED,
    NodeWish.DRAIN: NodePhase.DRAINING,
}


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """What the observer knows of the pool as a whole, and of its own eyesight."""

    nodes: int
    nodes_missing: int
    """Nodes whose lease is over, this one included."""
    gateways_reporting: int
    """Gateways whose heartbeat is fresh. 0 means that nobody can speak for the node's engines."""
    watching_for: timedelta
    """Length of time for which this loop has seen every lease renewal: no stall of its own, database up."""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    phase: NodePhase
    wish: NodeWish
    lease_expires_at: datetime
    answered_ago: timedelta | None = None
    """Since a gateway last had an answer from an engine of the node; None: none of the reporting ones
    ever had."""
    stale_engines: int | None = None
    """Engines of older generations still on the node; None: it has not reported since its return."""
    replicas_left: int = 0


@dataclass(frozen=True)
class WaitNode:
    reason: str


@dataclass(frozen=True)
class FreezeNode:
    """Nothing destructive is done and an operator must see why. `code` is stable."""

    code: str
    reason: str


@dataclass(frozen=True)
class MoveNode:
    to: NodePhase
    code: str
    reason: str


NodeDecision = WaitNode | FreezeNode | MoveNode


def next_step(node: NodeFacts, pool: PoolView, *, now: datetime) -> NodeDecision:
    lease_over_for = now - node.lease_expires_at
    if lease_over_for <= timedelta(0):
        return _while_leased(node)
    match node.phase:
        case NodePhase.REPLACED:
            return WaitNode("replaced; waiting for the node to return")
        case NodePhase.UNREACHABLE:
            return _while_unreachable(node, pool, lease_over_for)
        case _:
            return MoveNode(NodePhase.UNREACHABLE, "lease_over", "the node's lease has run out")


def _while_leased(node: NodeFacts) -> NodeDecision:
    wished = _WISHED[node.wish]
    if node.phase is NodePhase.REPLACED:
        if node.stale_engines is None:
            return WaitNode("the node is back; waiting for its list of engines")
        if node.stale_engines:
            return WaitNode(
                f"the node is back; {node.stale_engines} engines of older generations are being stopped"
            )
    if node.phase is not wished:
        returned = node.phase in {NodePhase.UNREACHABLE, NodePhase.REPLACED}
        return MoveNode(wished, "returned" if returned else "wished", f"the node is {wished}")
    if node.phase is NodePhase.DRAINING:
        return WaitNode(f"{node.replicas_left} replicas left to drain" if node.replicas_left else "drained")
    return WaitNode(f"the node is {wished}")


def _while_unreachable(node: NodeFacts, pool: PoolView, lease_over_for: timedelta) -> NodeDecision:
    if lease_over_for < REPLACE_AFTER:
        return WaitNode(f"lease over; replaced at the earliest after {REPLACE_AFTER.seconds} s")
    if pool.nodes_missing * 2 >= pool.nodes:
        return FreezeNode(
            "too_many_missing",
            f"{pool.nodes_missing} of {pool.nodes} nodes are missing: the fault may be here; nothing moves",
        )
    if pool.watching_for < REPLACE_AFTER:
        return FreezeNode(
            "observer_was_blind", "this loop stalled lately; nothing is moved until it has watched for 60 s"
        )
    if pool.gateways_reporting == 0:
        return FreezeNode(
            "no_gateway_reports",
            "no gateway reports, so nobody can say whether the node's engines still serve",
        )
    if node.answered_ago is not None and node.answered_ago < GATEWAY_SILENCE:
        return FreezeNode("still_serving", "the lease is over, but gateways still get answers from it")
    return MoveNode(
        NodePhase.REPLACED, "node_lost", "no lease for 60 s and no answer to any gateway for 10 s"
    )
