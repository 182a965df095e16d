"""Gateways as their last beat described them, and who has applied the newest routing table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pool.models import GatewayInstance, RoutingState
from pool.queries.ages import Age, age_of

SILENT_AFTER = timedelta(seconds=3)
GONE_SHOWN_FOR = timedelta(minutes=10)


@dataclass(frozen=True)
class GatewayRow:
    id: str
    host: str
    pid: int | None
    started_at: datetime | None
    epoch: int
    version: int
    applied_at: datetime | None
    up_to_date: bool
    """It says that it serves from the newest table."""
    seen: Age
    via: str
    """How its last beat came: redis or web."""
    draining: bool
    gone_at: datetime | None
    in_flight: int | None


@dataclass(frozen=True)
class TableState:
    epoch: int
    version: int
    changed_at: datetime


@dataclass(frozen=True)
class Acknowledgement:
    """`applied_at` None: this gateway has not said that it applied the table."""

    id: str
    applied_at: datetime | None


def find_table_state() -> TableState | None:
    """None before the first start has made it. 1 query, without the table's bytes."""
    row = RoutingState.objects.filter(pk=1).values_list("epoch", "version", "changed_at").first()
    return None if row is None else TableState(*row)


def list_gateways(*, now: datetime, limit: int = 500, offset: int = 0) -> tuple[GatewayRow, ...]:
    """Those that beat, and those that left within ten minutes. 2 queries."""
    newest = find_table_state()
    rows = GatewayInstance.objects.filter(gone_at=None) | GatewayInstance.objects.filter(
        gone_at__gt=now - GONE_SHOWN_FOR
    )
    return tuple(_row(row, newest, now=now) for row in rows.order_by("id")[offset : offset + limit])


def list_acknowledgements(*, epoch: int, version: int) -> tuple[Acknowledgement, ...]:
    """What each gateway that is not known to be gone says of a table at least this new. 1 query."""
    return tuple(
        Acknowledgement(
            id=row.pk, applied_at=row.applied_at if (row.epoch, row.version) >= (epoch, version) else None
        )
        for row in GatewayInstance.objects.filter(gone_at=None).order_by("id")
    )


def _row(row: GatewayInstance, newest: TableState | None, *, now: datetime) -> GatewayRow:
    in_flight = row.report.get("in_flight")
    return GatewayRow(
        id=row.pk,
        host=row.host,
        pid=row.pid,
        started_at=row.started_at,
        epoch=row.epoch,
        version=row.version,
        applied_at=row.applied_at,
        up_to_date=newest is not None and (row.epoch, row.version) >= (newest.epoch, newest.version),
        seen=age_of(row.seen_at, now=now, stale_after=SILENT_AFTER),
        via=row.via,
        draining=row.draining,
        gone_at=row.gone_at,
        in_flight=in_flight if isinstance(in_flight, int) else None,
    )
