"""Watches leases: a node that is silent becomes unreachable, and replaced only when that is safe."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from django.db.models import Count, Q

from pool.domain.node import FreezeNode, MoveNode, NodeFacts, NodePhase, NodeWish, PoolView, next_step
from pool.models import GatewayInstance, Node
from pool.services.nodes import move_node, show_reason

GATEWAY_SILENT_AFTER = timedelta(seconds=3)
PROBE_STALLED_AFTER = timedelta(seconds=40)
"""Probes of a node's queue are sent every 10 s: three lost ones and some slack (FC-46)."""

_LEFT = ["starting", "loading", "warming", "ready", "draining"]


def make_pass(watching_for: Callable[[], timedelta]) -> Callable[[datetime], dict[str, object]]:
    def run(now: datetime) -> dict[str, object]:
        return run_pass(now, watching_for=watching_for())

    return run


def run_pass(now: datetime, *, watching_for: timedelta) -> dict[str, object]:
    nodes = list(
        Node.objects.select_related("lease").annotate(
            left=Count("replicas", filter=Q(replicas__phase__in=_LEFT))
        )
    )
    gateways = list(GatewayInstance.objects.filter(gone_at=None, seen_at__gt=now - GATEWAY_SILENT_AFTER))
    leased = [node for node in nodes if hasattr(node, "lease")]
    view = PoolView(
        nodes=len(leased),
        nodes_missing=sum(node.lease.until <= now for node in leased),
        gateways_reporting=len(gateways),
        watching_for=watching_for,
    )
    frozen: dict[str, str] = {}
    for node in leased:
        decision = next_step(_facts(node, gateways, now), view, now=now)
        if isinstance(decision, MoveNode):
            move_node(node, decision, now=now)
        elif isinstance(decision, FreezeNode):
            frozen[node.name] = decision.reason
            if node.reason_code != decision.code:
                show_reason(node, decision.code, decision.reason)
        else:
            _show_queue(node, now)
    return {"nodes": len(leased), "missing": view.nodes_missing, "frozen": frozen}


def _facts(node: Node, gateways: list[GatewayInstance], now: datetime) -> NodeFacts:
    return NodeFacts(
        phase=NodePhase(node.phase),
        wish=NodeWish(node.wish),
        lease_expires_at=node.lease.until,
        answered_ago=_answered_ago(node.name, gateways, now),
        stale_engines=node.facts.get("stale_engines"),
        replicas_left=getattr(node, "left", 0),
    )


def _answered_ago(name: str, gateways: list[GatewayInstance], now: datetime) -> timedelta | None:
    ages = []
    for gateway in gateways:
        age = gateway.report.get("nodes", {}).get(name)
        if isinstance(age, (int, float)):
            ages.append(timedelta(seconds=age) + (now - gateway.seen_at))
    return min(ages, default=None)


def _show_queue(node: Node, now: datetime) -> None:
    """A worker whose lease is fresh but whose queue is silent is said to be stalled, and keeps its phase."""
    if node.phase not in ("ready", "cordoned", "draining"):
        return
    seen_at, sent_at = node.lease.probe_seen_at, node.lease.probe_sent_at
    stalled = sent_at is not None and (seen_at is None or sent_at - seen_at > PROBE_STALLED_AFTER)
    if stalled and node.reason_code != "queue_stalled":
        text = "The worker renews its lease, but takes no task from its queue. It restarts its consumer by itself."
        show_reason(node, "queue_stalled", text)
    elif not stalled and node.reason_code == "queue_stalled":
        show_reason(node, "", "")
