"""Readiness to go back, over REST."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

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
