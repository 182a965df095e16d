"""Every list: empty, one, many in a fixed number of queries, pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from pool.models import Model, Profile
from tests import factories

pytestmark = pytest.mark.django_db

GLOBAL_LISTS = ["models", "profiles", "replicas", "nodes", "devices", "runtimes", "gateways", "keys", "users"]
MODEL_LISTS = ["models/model-0/versions", "models/model-0/releases", "models/model-0/plans"]


@pytest.mark.parametrize("name", [name for name in GLOBAL_LISTS if name != "users"])
def test_an_empty_list_has_no_results_and_no_next(as_admin: APIClient, name: str) -> None:
    answer = as_admin.get(f"/api/v1/{name}/")

    assert answer.status_code == 200
    assert answer.json() == {"results": [], "next": None}


def count_queries(client: APIClient, path: str) -> tuple[int, list[Any]]:
    with CaptureQueriesContext(connection) as context:
        answer = client.get(path)
    assert answer.status_code == 200, answer.content
    return len(context), answer.json()["results"]


@pytest.mark.parametrize("name", [*GLOBAL_LISTS, *MODEL_LISTS])
def test_a_list_takes_the_same_queries_for_one_and_for_many(as_admin: APIClient, name: str) -> None:
    factories.make_pool(1)
    few, one = count_queries(as_admin, f"/api/v1/{name}/?limit=500")
    grow_pool()

    many, results = count_queries(as_admin, f"/api/v1/{name}/?limit=500")

    assert len(results) > len(one)
    assert many == few


def grow_pool() -> None:
    model, profile = Model.objects.get(), Profile.objects.get()
    for number in range(2, 6):
        node = factories.make_node(f"node-{number}")
        device = factories.make_device(node)
        factories.make_runtime(node)
        version = factories.make_version(model, name=f"v{number}")
        factories.make_presence(version, node)
        release = factories.make_release(model, number=number, version=version, profile=profile)
        factories.make_replica(release, node=node, device_uuids=[device.uuid])
        factories.make_plan(model, number=number)
        factories.make_model(f"model-{number}")
        factories.make_profile(f"profile-{number}")
        factories.make_gateway(f"gw-{number}")
        factories.make_key(f"key-{number}")
        factories.make_user(f"user-{number}")


def test_pages_follow_each_other_until_all_was_seen(as_viewer: APIClient) -> None:
    for number in range(5):
        factories.make_model(f"model-{number}")
    path: str | None = "/api/v1/models/?limit=2"
    seen: list[str] = []

    while path:
        page = as_viewer.get(path).json()
        seen += [model["name"] for model in page["results"]]
        path = page["next"]

    assert seen == [f"model-{number}" for number in range(5)]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "offset=-1", "limit=9" + "9" * 40])
def test_a_limit_outside_its_range_is_refused(as_viewer: APIClient, query: str) -> None:
    answer = as_viewer.get(f"/api/v1/models/?{query}")

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid"


def test_times_are_rfc_3339_in_utc(as_viewer: APIClient) -> None:
    factories.make_model(created_at=factories.T0)

    model = as_viewer.get("/api/v1/models/").json()["results"][0]

    assert model["created_at"] == "2026-11-02T08:00:00Z"


def test_the_audit_list_filters_by_subject_and_what_lies_below(as_viewer: APIClient) -> None:
    factories.make_audit(subject="model/a")
    factories.make_audit(subject="model/a/release/1")
    factories.make_audit(subject="model/ab")

    found = as_viewer.get("/api/v1/audit/?subject=model/a").json()["results"]

    assert [entry["subject"] for entry in found] == ["model/a/release/1", "model/a"]


def test_the_status_shows_the_pool_in_a_fixed_number_of_queries(as_viewer: APIClient) -> None:
    factories.make_pool(2)

    with CaptureQueriesContext(connection) as context:
        status = as_viewer.get("/api/v1/status/").json()

    assert status["counts"]["replicas_ready"] == 4
    assert len(context) == 18  # token, groups, 16 of the overview


def test_replicas_are_found_by_model_phase_and_node(as_viewer: APIClient) -> None:
    factories.make_pool(2)

    found = as_viewer.get("/api/v1/replicas/?model=model-1&phase=ready&node=node-1").json()["results"]

    assert {replica["model"] for replica in found} == {"model-1"}
    assert len(found) == 2
