"""Requests as cells, and passes of the SLO loop over them, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.domain.routing_table import RestrictionRoute
from pool.models import Alert, Model, Slo
from pool.queries.routing import load_model_routes
from pool.reconcilers.slo import SloPass
from pool.services.audit import Actor
from pool.services.slos import SloWish, create_slo
from pool.telemetry.store import add_cells
from tests.factories import T0, make_model, make_routing_state

ACTOR = Actor("otto", "test")
STEP = timedelta(seconds=20)
QUICK: dict[str, Any] = {"enter_hold_s": 20, "exit_hold_s": 20, "cool_down_s": 60, "opposite_after_s": 60}


def make_world(**settings: Any) -> Slo:
    """A model with an SLO on its short lane."""
    make_routing_state()
    make_model("smollm2")
    wish = SloWish(lane="short", settings=QUICK | settings)
    return create_slo("smollm2", wish, actor=ACTOR, now=T0)


def send(at: datetime, ttft_s: float, *, count: int = 150, lane: str = "short", **more: int) -> None:
    """Streams whose first token came after so long."""
    cell = Cell(
        counts={"requests": count} | more,
        outcomes={"ok": count},
        stages={"ttft": Histogram.of([ttft_s] * count)},
    )
    add_cells({(SeriesKey("smollm2", 1, "r1", lane, "standard"), at): cell})


def live(
    minutes: float, values: Iterable[float | None], *, start: datetime = T0, passes: SloPass | None = None
) -> tuple[SloPass, datetime]:
    """A pass each twenty seconds, after the requests of these; values repeat. None = no request."""
    work, now, listed = passes or SloPass(), start, list(values)
    for number in range(int(minutes * 3)):
        value = listed[number % len(listed)]
        if value is not None:
            send(now, value)
        now += STEP
        work(now)
    return work, now


def levels() -> list[tuple[str, str]]:
    """Of the open alerts."""
    return sorted(Alert.objects.filter(closed_at=None).values_list("rule", "level"))


def held() -> list[RestrictionRoute]:
    """What gateways are told."""
    assert Model.objects.exists()
    return [one for model in load_model_routes() for one in model.restrictions]
