"""Adds cells to the stored ones and moves the stream's position, in one transaction: nothing counts twice."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction
from django.db.models import F

from pool.domain.histogram import Histogram
from pool.models import StreamPosition, TrafficCell
from pool.telemetry.cells import Cell, Series


def read_position(stream: str) -> str:
    """The id after which to read on; `0` before the first."""
    return StreamPosition.objects.filter(pk=stream).values_list("last_id", flat=True).first() or "0"


def add_cells(
    cells: Mapping[Series, Cell], *, stream: str, last_id: str, unreadable: int, now: datetime
) -> None:
    with transaction.atomic():
        StreamPosition.objects.update_or_create(pk=stream, defaults={"last_id": last_id, "updated_at": now})
        if unreadable:
            StreamPosition.objects.filter(pk=stream).update(dropped=F("dropped") + unreadable)
        for series in sorted(cells, key=repr):
            _add_cell(series, cells[series])


def _add_cell(series: Series, cell: Cell) -> None:
    name = {
        "at": series.at,
        "model": series.model,
        "release": series.release,
        "replica": series.replica,
        "lane": series.lane,
        "tier": series.tier,
    }
    stored = TrafficCell.objects.select_for_update().filter(**name).first()
    if stored is None:
        TrafficCell.objects.create(**name, **_values(cell))
        return
    before = Cell(
        requests=stored.requests,
        errors=stored.errors,
        interrupted=stored.interrupted,
        spilled=stored.spilled,
        output_tokens=stored.output_tokens,
        ttft=Histogram.from_bytes(bytes(stored.ttft)),
        e2e=Histogram.from_bytes(bytes(stored.e2e)),
    )
    TrafficCell.objects.filter(pk=stored.pk).update(**_values(before.merge(cell)))


def _values(cell: Cell) -> dict[str, object]:
    return {
        "requests": cell.requests,
        "errors": cell.errors,
        "interrupted": cell.interrupted,
        "spilled": cell.spilled,
        "output_tokens": cell.output_tokens,
        "ttft": cell.ttft.to_bytes(),
        "e2e": cell.e2e.to_bytes(),
    }
