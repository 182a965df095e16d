"""Fills memory from the tables: at the start, and after another process stored in between.

Exact, because positions and cells are stored together: what the positions say was read is in the tables, the cells of
ten seconds and five minutes that were not complete are added up again from the finer ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pool.models import RequestRecord, Series, StreamPosition
from pool.telemetry.facts import series_of
from pool.telemetry.joining import WAIT_S, Waiting
from pool.telemetry.memory import Memory, Reading
from pool.telemetry.open_cells import OpenCells
from pool.telemetry.rows import CELLS, GAUGE_CELLS, C, K, Kind, datetime_of

_CHUNK = 500


def rebuild(prefix: str, *, now_s: float) -> Memory:
    """`prefix`: of the streams' names, "sluice:<installation>"."""
    memory = Memory.empty(now_s)
    stored = dict(StreamPosition.objects.filter(pk__startswith=f"{prefix}:").values_list("pk", "last_id"))
    memory.facts, memory.samples = (_reading(stored.get(f"{prefix}:{name}")) for name in ("facts", "samples"))
    marks = {s: int(stored[f"{prefix}:closed:{s}"]) for s in (10, 300) if f"{prefix}:closed:{s}" in stored}
    memory.closed = marks
    _fill(CELLS, memory.cells, marks)
    _fill(GAUGE_CELLS, memory.gauges, marks)
    _fill_names(memory)
    _fill_waiting(memory, now_s=now_s)
    return memory


def _reading(stored: str | None) -> Reading:
    return Reading(stored or "0", stored or "0")


def _fill(kind: Kind[K, C], cells: OpenCells[K, C], marks: dict[int, int]) -> None:
    cells.begin(marks)
    keys, closed = _read_keys(kind), cells.closed
    for key, at_s, cell in _read(kind, 1, keys, start_s=cells.floor_s, end_s=None):
        cells.restore_second(key, at_s, cell)
    for key, at_s, cell in _read(kind, 10, keys, start_s=closed[300], end_s=closed[10]):
        cells.restore_ten(key, at_s, cell)


def _read_keys(kind: Kind[K, C]) -> dict[int, K]:
    names = kind.key_names
    return {number: kind.key_type(*values) for number, *values in kind.keys.objects.values_list("pk", *names)}


def _read(
    kind: Kind[K, C], period_s: int, keys: dict[int, K], *, start_s: int, end_s: int | None
) -> Iterator[tuple[K, int, C]]:
    rows = kind.tables[period_s].objects.filter(at__gte=datetime_of(start_s))
    if end_s is not None:
        rows = rows.filter(at__lt=datetime_of(end_s))
    for number, at, *values in rows.values_list(kind.id_column, "at", *kind.columns).iterator(_CHUNK):
        key = keys.get(number)
        if key is not None:
            yield key, int(at.timestamp()), kind.unpack(key, values)


def _fill_names(memory: Memory) -> None:
    for model, region, label in Series.objects.values_list("model", "region", "label").distinct():
        memory.names.bound({"model": model, "region": region, "label": label})


def _fill_waiting(memory: Memory, *, now_s: float) -> None:
    """Records whose engine's times may still come."""
    since = datetime.fromtimestamp(now_s, tz=UTC) - timedelta(seconds=WAIT_S)
    rows: Any = RequestRecord.objects.filter(at__gte=since, engine_queue_s__isnull=True).exclude(replica="")
    for record in rows.iterator(_CHUNK):
        memory.joiner.add_fact(
            Waiting(
                record.request_id,
                record.at,
                int(record.at.timestamp() + (record.e2e_s or 0.0)),
                record.replica,
                record.e2e_s,
                series_of({name: getattr(record, name) for name in _SERIES_OF_RECORD})[0],
                record.attempts,
            ),
            now_s=now_s,
        )


_SERIES_OF_RECORD = ("model", "release", "replica", "lane", "tier", "label", "prompt_tokens", "region")
