from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.models import RESOLUTIONS, FiveMinuteCell, FiveMinuteGauge, GaugeSubject, Series
from pool.telemetry.dead_series import EVERY, drop_dead_series
from pool.telemetry.store import add_cells, add_gauges
from tests.factories import T0, make_model, make_node, make_release, make_replica

pytestmark = pytest.mark.django_db


@pytest.fixture
def _world() -> None:
    """`live` has a row; `dead` and `older` have none, and nothing refers to `older` any more."""
    make_replica(make_release(make_model("smollm2")), id="live", node=make_node())
    for number, name in enumerate(("live", "dead", "older", "")):
        at = T0 + timedelta(minutes=5 * number)
        add_cells({(SeriesKey("smollm2", 1, name, "short"), at): Cell(counts={"requests": 1})})
    for name in ("live", "dead", "older"):
        cell = GaugeCell()
        cell.note("kv_blocks", 100)
        add_gauges({(Subject("replica", name, "node-a", "smollm2", 1, ""), T0): cell})
    add_gauges({(Subject("device", "cpu", "node-a"), T0): cell})
    for resolution in (FiveMinuteCell, *_finer("cell")):
        resolution.objects.filter(series__replica__in=("older", "live", "")).delete()
    for resolution in (FiveMinuteGauge, *_finer("gauge")):
        resolution.objects.exclude(subject__name="dead").delete()


def _finer(kind: str) -> list[Any]:
    return [RESOLUTIONS[seconds][kind == "gauge"] for seconds in (1, 10)]


@pytest.mark.usefixtures("_world")
def test_names_go_with_the_last_cell_of_a_replica_that_is_gone() -> None:
    assert drop_dead_series(T0) == {"series": 1, "subjects": 1}

    assert set(Series.objects.values_list("replica", flat=True)) == {"live", "dead", ""}
    assert set(GaugeSubject.objects.values_list("name", flat=True)) == {"live", "dead", "cpu"}


@pytest.mark.usefixtures("_world")
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_cell_of_any_resolution_keeps_the_name(kept: int) -> None:
    tables: list[Any] = [FiveMinuteCell, *_finer("cell")]
    for number, table in enumerate(tables):
        if number != kept:
            table.objects.all().delete()

    drop_dead_series(T0)

    assert "dead" in Series.objects.values_list("replica", flat=True)


@pytest.mark.usefixtures("_world")
def test_the_names_are_looked_through_once_a_day() -> None:
    drop_dead_series(T0)
    Series.objects.create(model="smollm2", replica="gone")

    assert drop_dead_series(T0 + EVERY / 2) == {}
    assert drop_dead_series(T0 + EVERY) == {"series": 1, "subjects": 0}
