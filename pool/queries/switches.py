"""Durations of the newest switch of each replica of a node."""

from __future__ import annotations

from datetime import datetime, timedelta

from pool.domain.switching import Move, find_switch
from pool.models import Node, PhaseChange, Replica

LOOK_BACK = timedelta(days=1)
MOST_MOVES = 5000


def list_switches(node: Node, now: datetime) -> list[tuple[Replica, timedelta]]:
    """Of the replicas that are ready there, those that replaced something within the last day. Two queries."""
    rows = list(Replica.objects.filter(node=node).select_related("release__model"))
    by_id = {row.pk: row for row in rows}
    changes = PhaseChange.objects.filter(replica__in=by_id, at__gte=now - LOOK_BACK).order_by("-at", "-id")
    moves: dict[tuple[int, str], list[Move]] = {}
    for replica, phase, at in reversed(changes.values_list("replica_id", "phase", "at")[:MOST_MOVES]):
        row = by_id[replica]
        kind = (row.release.model_id, row.lane)
        moves.setdefault(kind, []).append(Move(replica, frozenset(row.device_uuids), phase, at))
    found = []
    for row in rows:
        if row.phase != "ready":
            continue
        took = find_switch(
            row.pk,
            created_at=row.created_at,
            devices=frozenset(row.device_uuids),
            moves=moves.get((row.release.model_id, row.lane), []),
        )
        if took is not None:
            found.append((row, took))
    return found
