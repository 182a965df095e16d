"""How far telemetry has read a stream, and the stored seconds that a live view begins with."""

from __future__ import annotations

from datetime import datetime

from pool.domain.cells import SeriesKey
from pool.domain.histogram import Histogram
from pool.models import RoutingState, StreamPosition
from pool.queries.cells import CellFilter, find_series, list_stage


def find_position(name: str) -> tuple[str, str]:
    """(the stream's key in Redis, the id of its last entry that is stored; `0` before the first)."""
    stream = f"sluice:{RoutingState.objects.get(pk=1).installation}:{name}"
    last_id = StreamPosition.objects.filter(pk=stream).values_list("last_id", flat=True).first()
    return stream, last_id or "0"


def list_seconds(
    wanted: CellFilter, stage: str, *, start: datetime, end: datetime
) -> list[tuple[int, SeriesKey, Histogram]]:
    """(second since the epoch, series, histogram) where the stage has samples, in [start, end)."""
    series = find_series(wanted)
    rows = list_stage(series, stage, start=start, end=end, resolution_s=1)
    return [
        (int(at.timestamp()), series[number], Histogram.from_bytes(bytes(content)))
        for number, at, content in rows
    ]
