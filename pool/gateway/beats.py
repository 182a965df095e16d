"""What a gateway says of itself each second: which table it serves from, and what it still has in flight."""

import os
import socket
import time
from datetime import UTC, datetime
from typing import Any

import orjson

from pool.gateway.plane import Plane

_STARTED_AT = datetime.now(UTC)


def build_beat(plane: Plane, *, now_s: float) -> bytes:
    """JSON. `now_s`: the loop's clock, which the replicas' times count on. A replica without `streams` has none now;
    one without `last_sent_at` (seconds since 1970) was sent nothing since this process began. `limits`: replica → lane:
    [requests at once, as this process has learned it for the whole replica; why it moved last]."""
    nodes: dict[str, float | None] = {}
    replicas: dict[str, dict[str, int | float | None]] = {}
    to_epoch_s = time.time() - now_s
    streams = _count_streams(plane)
    for replica in plane.routes.replicas:
        answer_age_s = _age(replica.last_answer_at_s, now_s)
        nodes[replica.node] = _younger(nodes.get(replica.node), answer_age_s)
        # Two generations of one replica can still have requests at the same time.
        known = replicas.setdefault(
            replica.id, {"in_flight": 0, "last_answer_age_s": None, "last_request_age_s": None}
        )
        known["in_flight"] = (known["in_flight"] or 0) + replica.in_flight
        known["last_answer_age_s"] = _younger(known["last_answer_age_s"], answer_age_s)
        request_age_s = _age(replica.last_request_at_s, now_s)
        known["last_request_age_s"] = _younger(known["last_request_age_s"], request_age_s)
        if replica.id in streams:
            known["streams"] = streams[replica.id]
        if replica.last_sent_at_s:
            sent_at = round(replica.last_sent_at_s + to_epoch_s, 4)
            known["last_sent_at"] = max(known.get("last_sent_at") or 0.0, sent_at)
    epoch, version = plane.routes.order or (0, 0)
    applied_at = plane.routes.applied_at
    return orjson.dumps(
        {
            "id": plane.config.gateway_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": _STARTED_AT.isoformat(),
            "at": datetime.fromtimestamp(time.time(), UTC).isoformat(),
            "epoch": epoch,
            "version": version,
            "applied_at": datetime.fromtimestamp(applied_at, UTC).isoformat() if applied_at else None,
            "in_flight": len(plane.exchanges),
            "nodes": nodes,
            "replicas": replicas,
            "releases": plane.tallies.tell(),
            "limits": _list_limits(plane, now_s),
            "draining": plane.draining,
        }
    )


def _list_limits(plane: Plane, now_s: float) -> dict[str, dict[str, list[Any]]]:
    limits: dict[str, dict[str, list[Any]]] = {}
    for model in plane.routes.models.values():
        for gate in model.gates.values():
            for name, told in gate.describe(now_s)["replicas"].items():
                limits[name] = {
                    lane: [one["whole_limit"], one["reason"]] for lane, one in told["lanes"].items()
                }
    return limits


def _count_streams(plane: Plane) -> dict[str, int]:
    """By replica: answers that go out as events, from the sending of the request on."""
    counts: dict[str, int] = {}
    for exchange in plane.exchanges:
        if exchange.stream and exchange.attempt is not None:
            name = exchange.attempt.replica.id
            counts[name] = counts.get(name, 0) + 1
    return counts


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(max(0.0, now_s - at_s), 3)


def _younger(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
