"""How far the stored figures of a range can be trusted: how old the newest is, what was lost on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db.models import Max

from pool.domain.gauges import PROCESS_COUNTERS
from pool.domain.heatmap import Columns
from pool.models import RESOLUTIONS, SecondCell, StreamPosition
from pool.queries.ages import STALE_AFTER, FigureState
from pool.queries.histograms import fetch_binary

_LOOK_BACK = timedelta(minutes=1)
_COUNTER_BYTES = 8


@dataclass(frozen=True)
class DataState:
    """`newest_at`: end of the newest second (or column) with a request; None without any. `age_s` counts to the end of
    the range, or to now where that is earlier. `read_at`: when telemetry last counted something, of any model.
    `facts_dropped`: requests of all models that gateways could not report within the range; None = not known.
    `empty_columns`: in them nothing ended, or nobody counted: there are no figures, and none of them is 0."""

    state: FigureState
    newest_at: datetime | None
    age_s: float | None
    read_at: datetime | None
    facts_dropped: int | None
    empty_columns: int


def load_data_state(
    series: Iterable[int], columns: Columns, filled: Iterable[bool], *, now: datetime
) -> DataState:
    """`filled`: by column, whether it has a sample. 3 queries."""
    marks = list(filled)
    newest = _find_newest(series, columns, marks, now)
    end = min(columns.end, now)
    age = None if newest is None else max(end - newest, timedelta(0))
    return DataState(
        state=_state_of(age, timedelta(seconds=columns.resolution_s)),
        newest_at=newest,
        age_s=None if age is None else age.total_seconds(),
        read_at=StreamPosition.objects.filter(pk__endswith=":facts").aggregate(Max("updated_at"))[
            "updated_at__max"
        ],
        facts_dropped=_count_dropped(columns),
        empty_columns=sum(1 for column in range(columns.count) if not marks[column]),
    )


def _state_of(age: timedelta | None, resolution: timedelta) -> FigureState:
    if age is None:
        return FigureState.ABSENT
    return FigureState.STALE if age > STALE_AFTER + resolution else FigureState.MEASURED


def _find_newest(
    series: Iterable[int], columns: Columns, marks: list[bool], now: datetime
) -> datetime | None:
    """To the second where the range reaches into the last minute, else to the column."""
    start, end = max(columns.start, now - _LOOK_BACK), min(columns.end, now)
    if start < end:
        cells = SecondCell.objects.filter(series_id__in=list(series), at__gte=start, at__lt=end)
        newest: datetime | None = cells.aggregate(Max("at"))["at__max"]
        if newest is not None:
            return min(newest + timedelta(seconds=1), now)
    last = max((column for column, mark in enumerate(marks) if mark), default=None)
    if last is None:
        return None
    return min(columns.start + timedelta(seconds=(last + 1) * columns.step_s), now)


def _count_dropped(columns: Columns) -> int | None:
    """Of the counters, packed one after the other, the database passes on the bytes of this one only."""
    table = RESOLUTIONS[columns.resolution_s][1]._meta.db_table
    place = PROCESS_COUNTERS.index("facts_dropped") * _COUNTER_BYTES + 1
    statement = f"""
        SELECT string_agg(substring(row.counters FROM {place} FOR {_COUNTER_BYTES}), ''::bytea)
        FROM {table} AS row JOIN pool_gaugesubject AS subject ON subject.id = row.subject_id
        WHERE subject.kind = 'process' AND row.at >= %s AND row.at < %s
              AND octet_length(row.counters) >= {place + _COUNTER_BYTES - 1}"""
    found = fetch_binary(statement, [columns.start, columns.end])
    counts = np.frombuffer(found[0][0] or b"", dtype="<f8")
    known = counts[~np.isnan(counts)]
    return int(math.fsum(known)) if known.size else None
