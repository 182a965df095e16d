"""Readiness to go back, over REST."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from pool.domain.cells import Cell, SeriesKey
from pool.models import Model
from pool.telemetry.store import add_cells
from tests import factories

URL = "/api/v1/models/smollm2/readiness/"


@pytest.mark.django_db
def test_it_tells_where_one_click_goes_and_how_long_it_takes(
    as_viewer: APIClient, routing_state: None
) -> None:
    model, node = factories.make_model("smollm2"), factories.make_node()
    for number in (1, 2):
        factories.make_replica(factories.make_release(model, number=number), node=node, routed=True)
    factories.make_plan(model, number=1)
    factories.make_plan(model, number=2, weights={"2": 100})

    answer = as_viewer.get(URL)

    assert answer.status_code == 200
    told = answer.json()
    assert (told["state"], told["plan"], told["release"], told["seconds"]) == ("warm", 1, 1, 2.0)
    assert told["capacity_ratio"] is None
    assert told["text"] == "back to release 1 in at most 2.0 s: warm, capacity unknown without requests"


@pytest.mark.django_db
def test_a_model_without_an_older_plan_says_so(as_viewer: APIClient, routing_state: None) -> None:
    factories.make_plan(factories.make_model("smollm2"))

    told = as_viewer.get(URL).json()

    assert (told["state"], told["seconds"]) == ("nowhere", None)
    assert told["text"] == "nowhere to go back to: no older plan"


@pytest.mark.django_db
def test_no_such_model(as_viewer: APIClient) -> None:
    assert as_viewer.get(URL).status_code == 404


def overload(model: Model) -> None:
    """Release 1 has one ready replica with 8 slots, and 12 requests at once come."""
    key, now = SeriesKey("smollm2", 1, "r1", "short", "standard"), timezone.now()
    factories.make_replica(factories.make_release(model), node=factories.make_node(), id="r1", routed=True)
    factories.make_plan(model)
    for step in range(34):
        cell = Cell(counts={"requests": 120}, sums={"e2e_s": 120.0})
        add_cells({(key, now.replace(microsecond=0) - timedelta(seconds=10 * step)): cell})


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path",
    ["models/smollm2/releases/1/scale/", "replicas/r1/drain/", "replicas/r1/restart/", "nodes/node-a/drain/"],
)
def test_unloading_is_refused_until_the_overload_is_accepted(
    as_operator: APIClient, routing_state: None, path: str
) -> None:
    overload(factories.make_model("smollm2"))
    body = {"replicas": 0} if "scale" in path else {}

    refused = as_operator.post(f"/api/v1/{path}", body, format="json")

    assert refused.status_code == 409
    assert (
        "The rest would be overloaded: release 1 has no ready replica" in refused.json()["error"]["message"]
    )
    accepted = as_operator.post(f"/api/v1/{path}", body | {"accept_overload": True}, format="json")
    assert accepted.status_code == 200
