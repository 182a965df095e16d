from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import RequestRecord
from pool.telemetry.store import add_cells, add_requests
from tests import factories

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC).replace(microsecond=0)
MINUTE = timedelta(minutes=1)
BASE = "/api/v1/models/smollm2/latency/"
RANGE = {"from": (NOW - 30 * MINUTE).isoformat(), "to": NOW.isoformat()}


@pytest.fixture(autouse=True)
def _traffic() -> None:
    model = factories.make_model()
    factories.make_plan(model, created_at=NOW - 10 * MINUTE, comment="<b>bold</b>")
    for release, seconds in ((1, 0.2), (2, 0.8)):
        key = SeriesKey("smollm2", release, f"r{release}", "short", "standard", "app")
        cell = Cell({"requests": 200}, {"e2e_s": 400.0, "queue_s": 90.0}, {}, {})
        cell.stages = {"ttft": Histogram.of([seconds] * 200), "e2e": Histogram.of([2.0] * 200)}
        add_cells({(key, NOW - 5 * MINUTE): cell})
    add_cells({(SeriesKey("smollm2", region="eu"), NOW - 5 * MINUTE): cell})


def get(client: APIClient, path: str = "", **query: Any) -> Any:
    return client.get(BASE + path, RANGE | query)


def test_the_heatmap_comes_as_cells(as_viewer: APIClient) -> None:
    answer = get(as_viewer)

    body = answer.json()
    assert answer.status_code == 200
    assert (body["total"]["samples"], body["stage"], body["step_s"]) == (400, "ttft", 10)
    assert len(body["counts"]) == len(body["edges_s"]) - 1 <= 60
    assert len(body["samples"]) in (180, 181)  # the range begins and ends within a step
    assert body["lines"][0]["seconds"][0] is None


def test_the_heatmap_comes_as_a_figure_with_events(as_viewer: APIClient) -> None:
    figure = get(as_viewer, format="figure", colouring="share").json()

    assert figure["data"][0]["type"] == "heatmap"
    assert [trace["name"] for trace in figure["data"]] == [
        "share",
        *["p50"] * 2,
        *["p95"] * 2,
        *["p99"] * 2,
        "events",
    ]
    assert "&lt;b&gt;bold" in figure["data"][-1]["hovertext"][0]
    assert len(figure["layout"]["shapes"]) == 1


@pytest.mark.parametrize(
    ("query", "samples"),
    [
        ({"release": "2"}, 200),
        ({"release": "1,2"}, 400),
        ({"lane": "short", "tier": "standard", "label": "app", "replica": "r1"}, 200),
        ({"lane": "long"}, 0),
        ({"long": "true"}, 0),
        ({"long": "false"}, 400),
        ({"stage": "queue"}, 0),
    ],
)
def test_the_query_filters(as_viewer: APIClient, query: dict[str, str], samples: int) -> None:
    assert get(as_viewer, **query).json()["total"]["samples"] == samples


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"from": NOW.isoformat(), "to": (NOW - MINUTE).isoformat()}, "ends before it begins"),
        ({"from": "2020-01-01T00:00:00Z"}, "kept for 396 days"),
        ({"from": "2999-01-01T00:00:00Z", "to": "2999-01-01T01:00:00Z"}, "lies in the future"),
        ({"step": "5"}, "Take one of 10"),
        ({"step": "7"}, "step"),
        ({"stage": "wishful"}, "stage"),
        ({"release": "two"}, "no number of a release"),
        ({"from": "yesterday"}, "from"),
        ({"to": "0001-01-01T00:00:00Z"}, "between 2000 and 3000"),
        ({"from": "0001-01-01T00:00:00+14:00"}, "out of range"),
        ({"to": "9999-12-31T23:59:59Z"}, "between 2000 and 3000"),
    ],
)
def test_what_cannot_be_answered_is_said_clearly(
    as_viewer: APIClient, query: dict[str, str], says: str
) -> None:
    answer = get(as_viewer, **query)

    assert answer.status_code == 400
    assert says in answer.content.decode()


def test_two_releases_are_compared(as_viewer: APIClient) -> None:
    body = get(as_viewer, "difference/", base=1, release=2, step=300).json()
    figure = get(as_viewer, "difference/", base=1, release=2, step=300, format="figure").json()

    assert any(any(row) for row in body["significant"])
    assert any(body["range_significant"])
    assert [side["p50_s"] for side in body["summaries"]] == [
        pytest.approx(0.2, 0.01),
        pytest.approx(0.8, 0.01),
    ]
    assert len(figure["data"]) == 2


def test_regions_composition_and_events_have_their_own_paths(as_viewer: APIClient) -> None:
    regions = get(as_viewer, "regions/", quantile=0.99)
    figure = get(as_viewer, "regions/", format="figure")
    composition = get(as_viewer, "composition/")
    events = get(as_viewer, "events/")

    assert (regions.json()["regions"], regions.json()["unknown_requests"]) == (["eu"], 200)
    assert figure.json()["data"][0]["y"] == ["eu"]
    marked = [part["part"] for part in composition.json()["components"] if part["marked"]]
    assert (composition.json()["e2e_s"], marked) == (800.0, ["queue", "other"])
    assert events.json()["events"][0]["kind"] == "plan"


def test_a_cell_lists_its_requests(as_viewer: APIClient) -> None:
    fields = {"model": "smollm2", "status": 200, "outcome": "ok", "e2e_s": 2.0, "lane": "short"}
    add_requests(
        RequestRecord(request_id=f"q{n}", at=NOW - 5 * MINUTE, ttft_s=0.1 * (n + 1), **fields)
        for n in range(3)
    )
    cell = {"cell_from": (NOW - 6 * MINUTE).isoformat(), "low_s": 0.15, "high_s": 0.5}

    body = get(as_viewer, "requests/", **cell).json()
    empty = get(as_viewer, "requests/", **cell | {"cell_to": (NOW - 10 * MINUTE).isoformat()})

    assert [row["request_id"] for row in body["requests"]] == ["q2", "q1"]
    assert (body["chosen"], body["rest"], body["lifts"]) == (2, 1, [])
    assert empty.status_code == 400


def test_an_unknown_model_is_not_found(as_viewer: APIClient) -> None:
    assert as_viewer.get("/api/v1/models/nobody/latency/").status_code == 404


def test_without_a_range_it_is_the_last_hour(as_viewer: APIClient) -> None:
    assert as_viewer.get(BASE).json()["total"]["samples"] == 400
