"""Names of replicas that are gone, removed once no cell of any resolution refers to them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet

from pool.models import GaugeSubject, Replica, Series
from pool.services.runs import claim_run
from pool.telemetry.rows import CELLS, GAUGE_CELLS, Kind

EVERY: Final = timedelta(days=1)
PIECE: Final = 200
"""Each costs a look into every partition of its tables."""


def drop_dead_series(now: datetime) -> dict[str, int]:
    """Rows removed, by kind; empty when another run of this day did it already.

    A replica's row outlives its stop by a month, so whoever remembers an id of these has no cell for it any more.
    """
    if not claim_run("dead series", every=EVERY, now=now):
        return {}
    return {
        "series": _drop(CELLS, _without_replica(Series.objects.exclude(replica=""), "replica")),
        "subjects": _drop(GAUGE_CELLS, _without_replica(GaugeSubject.objects.filter(kind="replica"), "name")),
    }


def _without_replica(rows: QuerySet[Any], name: str) -> list[int]:
    return list(rows.exclude(Exists(Replica.objects.filter(pk=OuterRef(name)))).values_list("pk", flat=True))


def _drop(kind: Kind[Any, Any], numbers: list[int]) -> int:
    dropped = 0
    for piece in _pieces(numbers):
        unused = piece
        for table in kind.tables.values():
            unused = _list_unused(table._meta.db_table, kind.id_column, unused)
        dropped += kind.keys.objects.filter(pk__in=unused).delete()[0]
    return dropped


def _list_unused(table: str, column: str, numbers: list[int]) -> list[int]:
    """One look-up for each: as a join PostgreSQL might read the whole table."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT wanted.id FROM unnest(%s::bigint[]) AS wanted (id) LEFT JOIN LATERAL"
            f" (SELECT true AS is_used FROM {table} WHERE {column} = wanted.id LIMIT 1) AS found ON true"
            " WHERE found.is_used IS NULL",
            [numbers],
        )
        return [number for (number,) in cursor.fetchall()]


def _pieces(numbers: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(numbers), PIECE):
        yield numbers[start : start + PIECE]
