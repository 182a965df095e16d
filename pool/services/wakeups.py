"""Probes of the nodes' queues: sent by control, noted by the worker that takes them."""

from __future__ import annotations

from datetime import datetime

from pool.models import NodeLease

PROBE_EVERY_S = 10


def list_probe_targets(now: datetime) -> list[str]:
    """Nodes with a valid lease whose last probe is 10 s old or older."""
    rows = NodeLease.objects.filter(until__gt=now).select_related("node")
    return [
        row.node.name
        for row in rows
        if row.probe_sent_at is None or (now - row.probe_sent_at).total_seconds() >= PROBE_EVERY_S
    ]


def note_probe_sent(node: str, *, now: datetime) -> None:
    NodeLease.objects.filter(node__name=node).update(probe_sent_at=now)


def note_probe(node: str, *, sent_at: str, now: datetime) -> None:
    """`sent_at` is kept as what was seen: a probe that waited in the queue proves no more than its own age."""
    NodeLease.objects.filter(node__name=node).update(probe_seen_at=min(now, datetime.fromisoformat(sent_at)))
