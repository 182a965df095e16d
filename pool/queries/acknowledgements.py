"""Who has acknowledged which routing table, and what still runs where: facts for loops and drains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pool.models import GatewayInstance

SILENT_AFTER = timedelta(seconds=3)


@dataclass(frozen=True)
class GatewayView:
    """A gateway that is not known to be gone; `silent` when its last beat is over 3 s old."""

    id: str
    order: tuple[int, int]
    silent: bool
    in_flight: dict[str, int]


def list_live_gateways(now: datetime) -> list[GatewayView]:
    return [
        GatewayView(
            id=row.pk,
            order=(row.epoch, row.version),
            silent=row.seen_at < now - SILENT_AFTER,
            in_flight=_in_flight(row),
        )
        for row in GatewayInstance.objects.filter(gone_at=None)
    ]


def _in_flight(row: GatewayInstance) -> dict[str, int]:
    replicas = row.report.get("replicas")
    if not isinstance(replicas, dict):
        return {}
    return {
        name: facts["in_flight"]
        for name, facts in replicas.items()
        if isinstance(facts, dict) and isinstance(facts.get("in_flight"), int)
    }


def is_acknowledged(gateways: Iterable[GatewayView], order: tuple[int, int]) -> bool:
    return all(gateway.order >= order for gateway in gateways)


def count_in_flight(gateways: Iterable[GatewayView], replica_id: str) -> int | None:
    """None while a gateway is silent: it may still stream from the replica."""
    total = 0
    for gateway in gateways:
        if gateway.silent:
            return None
        total += gateway.in_flight.get(replica_id, 0)
    return total
