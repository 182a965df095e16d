from __future__ import annotations

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from pool.models import Replica, Runtime, StepProfile
from pool.services.step_profiles import begin_profile, store_profile
from tests import factories
from tests.pool.services.test_step_profiles import FIGURES, FLAME

pytestmark = pytest.mark.django_db
PATH = "/api/v1/replicas/r1/profiles/"


@pytest.fixture(autouse=True)
def _pool() -> None:
    node = factories.make_node()
    factories.make_runtime(node, kind="vllm")
    factories.make_replica(factories.make_release(factories.make_model()), node=node, id="r1")


def test_a_profile_is_asked_for_and_read_when_it_is_done(as_operator: APIClient) -> None:
    asked = as_operator.post(PATH, {"steps": 6})

    assert asked.status_code == 201
    profile = asked.json()["profile"]
    assert (profile["phase"], profile["steps_asked"], profile["shares"]) == ("waiting", 6, None)
    assert asked.json()["flame"] is None
    run = StepProfile.objects.get()
    assert run.intent is not None
    begin_profile(run.intent, now=timezone.now())
    store_profile(run.pk, figures=FIGURES, flame=FLAME, now=timezone.now())

    done = as_operator.get(f"{PATH}{profile['id']}/").json()

    assert done["profile"]["phase"] == "done"
    assert done["profile"]["shares"]["matrix_products"] == pytest.approx(0.5)
    assert (done["flame"], done["kernels"][0]["name"]) == (FLAME, "aten::mm")
    assert [row["id"] for row in as_operator.get(PATH).json()["results"]] == [profile["id"]]


def test_it_takes_the_usual_steps_unless_told(as_operator: APIClient) -> None:
    assert as_operator.post(PATH).json()["profile"]["steps_asked"] == 20


@pytest.mark.parametrize("steps", [0, 51, "many", None])
def test_steps_out_of_range_are_refused(as_operator: APIClient, steps: object) -> None:
    assert as_operator.post(PATH, {"steps": steps}).status_code == 400


def test_a_repeated_post_asks_once(as_operator: APIClient) -> None:
    first, second = (as_operator.post(PATH, headers={"Idempotency-Key": "k1"}) for _ in range(2))

    assert first.json() == second.json()
    assert StepProfile.objects.count() == 1


def test_refusals_are_typed(as_operator: APIClient) -> None:
    as_operator.post(PATH)
    again = as_operator.post(PATH)
    Runtime.objects.update(kind="sim")
    simulated = as_operator.post(PATH)
    Replica.objects.update(phase="draining")
    leaving = as_operator.post(PATH)

    assert [answer.status_code for answer in (again, simulated, leaving)] == [409, 409, 409]
    assert [answer.json()["error"]["code"] for answer in (again, simulated, leaving)] == [
        "profile_is_open",
        "engine_is_simulated",
        "replica_not_ready",
    ]


def test_a_viewer_reads_and_may_not_ask(as_viewer: APIClient) -> None:
    assert as_viewer.get(PATH).json() == {"results": [], "next": None}
    assert as_viewer.post(PATH).status_code == 403


def test_what_does_not_exist_is_not_found(as_operator: APIClient) -> None:
    assert as_operator.get(f"{PATH}1/").status_code == 404
    assert as_operator.get("/api/v1/replicas/nosuch/profiles/").status_code == 404
    assert as_operator.post("/api/v1/replicas/nosuch/profiles/").status_code == 404
