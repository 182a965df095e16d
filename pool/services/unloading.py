"""No replica is unloaded while the rest cannot carry what comes: field reports tell of +180-250 % at once."""

from __future__ import annotations

from datetime import datetime

from pool.models import Node, Release, Replica
from pool.queries.capacity import find_overload
from pool.services.errors import Conflict


def refuse_overload(release: Release, part: str, *, remaining: int, now: datetime) -> None:
    """Raises Conflict with the reason if at most `remaining` ready replicas of the release in `part` (empty: for all
    lanes) do not carry the present demand. Whoever knows better says `accept_overload` and does not ask."""
    words = find_overload(release.model.name, release.number, part, remaining, now)
    if words:
        raise Conflict(
            f"The rest would be overloaded: {words}. Start more replicas or give the release less weight first; or "
            "accept the overload.",
            release=release.number,
            remaining=remaining,
            accept="accept_overload",
        )


def refuse_unloading(replica: Replica, *, now: datetime) -> None:
    """The same for one replica that is drained or restarted."""
    if replica.phase != "ready":
        return
    remaining = _count_ready(replica.release_id, replica.lane) - 1
    refuse_overload(replica.release, replica.lane, remaining=max(0, remaining), now=now)


def refuse_unloading_node(node: Node, *, now: datetime) -> None:
    """The same for all replicas of a node together."""
    leaving: dict[tuple[int, str], list[Replica]] = {}
    for row in Replica.objects.filter(node=node, phase="ready", wish="run").select_related("release__model"):
        leaving.setdefault((row.release_id, row.lane), []).append(row)
    for (release_id, lane), rows in leaving.items():
        remaining = _count_ready(release_id, lane) - len(rows)
        refuse_overload(rows[0].release, lane, remaining=max(0, remaining), now=now)


def _count_ready(release_id: int, lane: str) -> int:
    return Replica.objects.filter(
        release=release_id, lane=lane, phase="ready", routed=True, wish="run"
    ).count()
