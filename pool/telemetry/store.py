"""Writes cells, gauges, request records and the streams' positions in one transaction: nothing counts twice.

The telemetry process is the only writer of a running installation. `add_…` adds to what is stored, at every resolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import F

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.models import RequestRecord, StreamPosition
from pool.telemetry.copying import change, put, target_of
from pool.telemetry.open_cells import Taken
from pool.telemetry.partitions import ensure_partition, forget_known
from pool.telemetry.records import RECORD_COLUMNS, row_of
from pool.telemetry.rows import CELLS, GAUGE_CELLS, C, K, Kind, Row, datetime_of

Cells = Mapping[tuple[SeriesKey, datetime], Cell]
Gauges = Mapping[tuple[Subject, datetime], GaugeCell]

_RECORD_KEYS = ("request_id", "at")
ENGINE_COLUMNS = ("engine_queue_s", "engine_prefill_s", "engine_decode_s", "preemptions")
_MOST_IDS = 50_000


class Overtaken(Exception):
    """The positions are not those that this process stored last: another one stored, or a commit's answer was lost.
    What is in memory may be wrong and has to be read from the tables again."""


class MissingPartition(DatabaseError):
    """One was dropped since it was made or seen; the next try makes it again."""


class Ids(Generic[K]):
    """Ids of series or subjects, kept for ever because they never change. One per process and kind."""

    def __init__(self, kind: Kind[Any, Any]) -> None:
        self._kind = kind
        self._known: dict[K, int] = {}

    def resolve(self, keys: Iterable[K]) -> dict[K, int]:
        """Makes what is missing. Remembers only what is committed."""
        wanted = set(keys)
        found = {key: self._known[key] for key in wanted if key in self._known}
        missing = wanted - found.keys()
        if missing:
            made = self._make(missing)
            found |= made
            transaction.on_commit(lambda: self._keep(made))
        return found

    def _make(self, missing: set[K]) -> dict[K, int]:
        model, names, make = self._kind.keys, self._kind.key_names, self._kind.key_type
        rows = [model(**{name: getattr(key, name) for name in names}) for key in missing]
        model.objects.bulk_create(rows, ignore_conflicts=True)
        stored = model.objects.filter(model__in={key.model for key in missing})
        by_key = {make(*values): number for number, *values in stored.values_list("pk", *names)}
        return {key: by_key[key] for key in missing}

    def _keep(self, made: Mapping[K, int]) -> None:
        if len(self._known) > _MOST_IDS:
            self._known.clear()
        self._known.update(made)


@dataclass
class Batch:
    """What is stored together. Storing it again after its commit changes no cell and no record."""

    positions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Stream → (last id that is stored, last id of what is in here)."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Stream → entries and facts of it that could not be used."""
    cells: Taken[SeriesKey, Cell] = field(default_factory=Taken)
    gauges: Taken[Subject, GaugeCell] = field(default_factory=Taken)
    records: list[Row] = field(default_factory=list)
    joins: list[Row] = field(default_factory=list)
    """(request id, arrival, ENGINE_COLUMNS) of records that are stored already."""
    closed: dict[str, int] = field(default_factory=dict)
    """Name of a mark → time before which the coarse cells are complete."""


@dataclass
class Store:
    """What a writing process remembers between its batches."""

    series: Ids[SeriesKey] = field(default_factory=lambda: Ids(CELLS))
    subjects: Ids[Subject] = field(default_factory=lambda: Ids(GAUGE_CELLS))

    def write(self, batch: Batch, *, now: datetime) -> None:
        """One transaction. Raises Overtaken, and database errors after which it may be tried again."""
        try:
            self._write(batch, now=now)
        except IntegrityError as exc:
            forget_known()
            if "no partition of relation" in str(exc):
                raise MissingPartition(str(exc)) from exc
            raise
        except DatabaseError:
            forget_known()
            raise

    def _write(self, batch: Batch, *, now: datetime) -> None:
        _ensure_all(batch)
        with transaction.atomic():
            for stream, (before, after) in batch.positions.items():
                _move_from(stream, before, after, dropped=batch.dropped.get(stream, 0), now=now)
            for mark, at_s in batch.closed.items():
                move_position(mark, str(at_s), unreadable=0, now=now)
            _write_taken(CELLS, batch.cells, self.series)
            _write_taken(GAUGE_CELLS, batch.gauges, self.subjects)
            _put_records(batch.records)
            if batch.joins:
                target = target_of(RequestRecord, (*_RECORD_KEYS, *ENGINE_COLUMNS), _RECORD_KEYS)
                change(target, batch.joins)


def read_position(stream: str) -> str:
    """The id after which to read on; `0` before the first."""
    return StreamPosition.objects.filter(pk=stream).values_list("last_id", flat=True).first() or "0"


def move_position(stream: str, last_id: str, *, unreadable: int, now: datetime) -> None:
    StreamPosition.objects.update_or_create(pk=stream, defaults={"last_id": last_id, "updated_at": now})
    if unreadable:
        StreamPosition.objects.filter(pk=stream).update(dropped=F("dropped") + unreadable)


def add_cells(cells: Cells) -> None:
    """At every resolution. `at`: any time within the cell's second."""
    _add(CELLS, cells)


def add_gauges(cells: Gauges) -> None:
    _add(GAUGE_CELLS, cells)


def add_requests(records: Iterable[RequestRecord]) -> None:
    with transaction.atomic():
        _put_records([row_of(record) for record in records])


def _add(kind: Kind[K, C], cells: Mapping[tuple[K, datetime], C]) -> None:
    with transaction.atomic():
        ids = Ids[K](kind).resolve(key for key, _ in cells)
        for period_s in kind.tables:
            folded: dict[tuple[K, int], C] = {}
            for (key, at), cell in cells.items():
                at_s = int(at.timestamp())
                folded.setdefault((key, at_s - at_s % period_s), kind.make()).add(cell)
            _add_late(kind, period_s, folded, ids)


def _write_taken(kind: Kind[K, C], taken: Taken[K, C], ids: Ids[K]) -> None:
    keys = {key for rows in taken.whole.values() for key, _, _ in rows}
    keys |= {key for late in taken.late.values() for key, _ in late}
    numbers = ids.resolve(keys)
    for period_s, rows in taken.whole.items():
        _put_rows(kind, period_s, [(numbers[key], at_s, row) for key, at_s, row in rows])
    for period_s, late in taken.late.items():
        _add_late(kind, period_s, late, numbers)


def _add_late(kind: Kind[K, C], period_s: int, late: Mapping[tuple[K, int], C], ids: Mapping[K, int]) -> None:
    """To what is stored, in this transaction: these cells are in nobody's memory."""
    if not late:
        return
    stored = _read_stored(kind, period_s, [(ids[key], at_s) for key, at_s in late])
    rows = []
    for (key, at_s), increment in late.items():
        number, cell = ids[key], kind.make()
        cell.add(increment)
        values = stored.get((number, at_s))
        if values is not None:
            cell.add(kind.unpack(key, values))
        rows.append((number, at_s, kind.pack(key, cell)))
    _put_rows(kind, period_s, rows)


def _read_stored(
    kind: Kind[Any, Any], period_s: int, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Row]:
    columns = ", ".join(f"stored.{name}" for name in kind.columns)
    table, times = kind.tables[period_s]._meta.db_table, [datetime_of(at_s) for _, at_s in places]
    with connection.cursor() as cursor:
        # The bounds let the planner leave out partitions.
        cursor.execute(
            f"SELECT stored.{kind.id_column}, stored.at, {columns} FROM {table} AS stored"
            " JOIN unnest(%s::bigint[], %s::timestamptz[]) AS wanted (id, at)"
            f" ON stored.{kind.id_column} = wanted.id AND stored.at = wanted.at"
            " WHERE stored.at BETWEEN %s AND %s",
            [[number for number, _ in places], times, min(times), max(times)],
        )
        return {(row[0], int(row[1].timestamp())): row[2:] for row in cursor.fetchall()}


def _put_rows(kind: Kind[Any, Any], period_s: int, rows: Sequence[tuple[int, int, Row]]) -> None:
    if not rows:
        return
    model: Any = kind.tables[period_s]
    _ensure(model._meta.db_table, {at_s for _, at_s, _ in rows})
    keys = (kind.id_column, "at")
    target = target_of(model, (*keys, *kind.columns), keys)
    put(target, ((number, datetime_of(at_s), *row) for number, at_s, row in rows), replace=True)


def _put_records(rows: Sequence[Row]) -> None:
    if rows:
        _ensure(RequestRecord._meta.db_table, {int(row[1].timestamp()) for row in rows})
        put(target_of(RequestRecord, RECORD_COLUMNS, _RECORD_KEYS), rows, replace=False)


def _ensure_all(batch: Batch) -> None:
    """Before the transaction, so that it holds no lock on the tables themselves."""
    for kind, taken in ((CELLS, batch.cells), (GAUGE_CELLS, batch.gauges)):
        for period_s, model in kind.tables.items():
            seconds = {at_s for _, at_s, _ in taken.whole.get(period_s, ())}
            _ensure(model._meta.db_table, seconds | {at_s for _, at_s in taken.late.get(period_s, {})})
    _ensure(RequestRecord._meta.db_table, {int(row[1].timestamp()) for row in batch.records})


def _ensure(table: str, seconds: set[int]) -> None:
    for hour in {at_s - at_s % 3600 for at_s in seconds}:
        ensure_partition(table, datetime_of(hour))


def _move_from(stream: str, before: str, after: str, *, dropped: int, now: datetime) -> None:
    found = StreamPosition.objects.select_for_update().filter(pk=stream).values_list("last_id", flat=True)
    if (found.first() or "0") != before:
        raise Overtaken(stream)
    if after != before or dropped:
        move_position(stream, after, unreadable=dropped, now=now)
