"""Partitions of the telemetry tables by time: made ahead, dropped when their time is over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class Plan:
    """`period`: what one partition holds; `keep`: how long its newest row is kept."""

    period: timedelta
    keep: timedelta


PLANS: dict[str, Plan] = {
    "pool_secondcell": Plan(HOUR, timedelta(hours=2)),
    "pool_secondgauge": Plan(HOUR, timedelta(hours=2)),
    "pool_tensecondcell": Plan(DAY, timedelta(days=30)),
    "pool_tensecondgauge": Plan(DAY, timedelta(days=30)),
    "pool_fiveminutecell": Plan(DAY, timedelta(days=396)),
    "pool_fiveminutegauge": Plan(DAY, timedelta(days=396)),
    "pool_requestrecord": Plan(DAY, timedelta(days=15)),
}
_known: set[tuple[str, datetime]] = set()


def ensure_partition(table: str, at: datetime) -> None:
    """The one that `at` falls into. Cheap when it was ensured before by this process."""
    start = floor_to(at, PLANS[table].period)
    if (table, start) not in _known:
        _make(table, start, start + PLANS[table].period)
        transaction.on_commit(lambda: _known.add((table, start)))


def floor_to(at: datetime, period: timedelta) -> datetime:
    seconds = period.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, tz=UTC)


def forget_known() -> None:
    """After a database was replaced or partitions were dropped."""
    _known.clear()


def name_of(table: str, start: datetime) -> str:
    return f"{table}_{start:%Y%m%d%H}"


def _make(table: str, start: datetime, end: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {name_of(table, start)} PARTITION OF {table} FOR VALUES FROM (%s) TO (%s)",
            [start, end],
        )
