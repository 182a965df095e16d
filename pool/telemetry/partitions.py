"""Partitions of the telemetry tables by time: made ahead, dropped when their time is over.

Writers and readers wait for neither: a partition is attached and detached under a lock that lets both pass.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import DatabaseError, OperationalError, connection, transaction

from pool.telemetry.open_cells import KEEP_S

logger = logging.getLogger(__name__)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KEEP_RECORDS = timedelta(days=15)
PATIENCE_MS = 2000
"""How long a drop waits for transactions that read the partition; the next run goes on where it stopped."""
_MAKING = 0x51_0CE_01
"""Advisory lock: two processes may want the same partition."""


@dataclass(frozen=True)
class Plan:
    """`period`: what one partition holds; `keep`: how long its newest row is kept; `ahead`: periods made before."""

    period: timedelta
    keep: timedelta
    ahead: int
    source_of: int = 0
    """Cells of so many seconds are made of it (0 = none): it is kept until they are complete."""


def _plan(period_s: int) -> Plan:
    keep = timedelta(seconds=KEEP_S[period_s])
    if period_s == 1:
        return Plan(HOUR, keep, ahead=3, source_of=10)
    return Plan(DAY, keep, ahead=1, source_of=300 if period_s == 10 else 0)


PLANS: dict[str, Plan] = {
    "pool_secondcell": _plan(1),
    "pool_secondgauge": _plan(1),
    "pool_tensecondcell": _plan(10),
    "pool_tensecondgauge": _plan(10),
    "pool_fiveminutecell": _plan(300),
    "pool_fiveminutegauge": _plan(300),
    "pool_requestrecord": Plan(DAY, KEEP_RECORDS, ahead=1),
}
_known: set[tuple[str, datetime]] = set()


def ensure_partition(table: str, at: datetime) -> None:
    """The one that `at` falls into. Cheap when it was ensured before by this process."""
    start = floor_to(at, PLANS[table].period)
    if (table, start) not in _known:
        _make(table, start, start + PLANS[table].period)
        transaction.on_commit(lambda: _known.add((table, start)))


def make_ahead(now: datetime) -> None:
    """The running period's and the next ones', so that no writer has to."""
    for table, plan in PLANS.items():
        for number in range(plan.ahead + 1):
            ensure_partition(table, now + number * plan.period)


def drop_old(now: datetime, closed: Mapping[int, datetime]) -> dict[str, int]:
    """Partitions dropped, and those still in use by a long reader, which the next run drops.

    `closed`: resolution → time before which its cells are complete; absent = nobody makes any.
    """
    outcome = {"dropped": 0, "delayed": 0}
    for table, plan in PLANS.items():
        for name, start, is_attached in list_partitions(table):
            end = start + plan.period
            is_needed = end > closed.get(plan.source_of, end)
            if end > now - plan.keep or is_needed:
                continue
            outcome["dropped" if drop_partition(table, name, is_attached=is_attached) else "delayed"] += 1
    return outcome


def list_partitions(table: str) -> list[tuple[str, datetime, bool]]:
    """(name, start, whether it is attached), oldest first. A drop that was cut may leave one that is not."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, EXISTS (SELECT 1 FROM pg_inherits i WHERE i.inhrelid = c.oid) FROM pg_class c"
            " WHERE c.relkind = 'r' AND c.relname ~ %s AND c.relnamespace = current_schema()::regnamespace"
            " ORDER BY c.relname",
            [f"^{table}_[0-9]{{10}}$"],
        )
        return [(name, _start_of(name), attached) for name, attached in cursor.fetchall()]


def floor_to(at: datetime, period: timedelta) -> datetime:
    seconds = period.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, tz=UTC)


def forget_known() -> None:
    """After a database was replaced or partitions were dropped."""
    _known.clear()


def name_of(table: str, start: datetime) -> str:
    return f"{table}_{start:%Y%m%d%H}"


def _start_of(name: str) -> datetime:
    return datetime.strptime(name[-10:], "%Y%m%d%H").replace(tzinfo=UTC)


def _make(table: str, start: datetime, end: datetime) -> None:
    """CREATE … PARTITION OF would lock the whole table; ATTACH lets reads and writes go on, and an empty table needs
    no scan."""
    name = name_of(table, start)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])
        cursor.execute("SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(%s)", [name])
        if cursor.fetchone() is not None:
            return
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {name}"
            f" (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)"
        )
        cursor.execute(
            f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)", [start, end]
        )


def drop_partition(table: str, name: str, *, is_attached: bool) -> bool:
    """False when a transaction that may read it did not end in time."""
    forget_known()
    try:
        with _patience(), connection.cursor() as cursor:
            if is_attached:
                cursor.execute(_detach(table, name))
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
    except OperationalError as exc:
        logger.info("partition %s is still in use: %s", name, exc)
        return False
    return True


def _detach(table: str, name: str) -> str:
    """Concurrently, which takes two transactions: none may be open. What a cut one left is finished."""
    if connection.in_atomic_block:
        return f"ALTER TABLE {table} DETACH PARTITION {name}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass(%s)", [name])
        row = cursor.fetchone()
    how = "FINALIZE" if row is not None and row[0] else "CONCURRENTLY"
    return f"ALTER TABLE {table} DETACH PARTITION {name} {how}"


@contextmanager
def _patience() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = {PATIENCE_MS}")
    try:
        yield
    finally:
        try:
            with connection.cursor() as cursor:
                cursor.execute("RESET statement_timeout")
        except DatabaseError:
            connection.close()
