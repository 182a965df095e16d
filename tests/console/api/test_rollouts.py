"""Rollouts over REST: started, watched, taken back; repeated and all at once."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from pool.domain.gates import GATES
from pool.domain.rollout import Phase
from pool.models import AuditEntry, Model, Plan, Rollout, RolloutEvent, Runtime
from pool.services.rollout_moves import update_if
from tests import factories
from tests.console.api.test_idempotency import race
from tests.console.api.test_schema import load_schema

V1 = "/api/v1"
START = {"candidate": 2, "steps": [{"weight": 10, "soak_s": 60, "min_requests": 5}], "hold_s": 60}


@pytest.fixture
def model(routing_state: None) -> Model:
    return make_model()


def make_model() -> Model:
    factories.make_sim_node()
    model = factories.make_model("smollm2")
    factories.make_release(model, number=1)
    factories.make_release(model, number=2, replicas=0)
    factories.make_plan(model)
    return model


def start(client: APIClient, **body: Any) -> Any:
    return client.post(f"{V1}/models/smollm2/rollouts/", START | body, format="json")


def give_weight(rollout_id: str) -> None:
    """As the loop does once the candidate is warm."""
    Rollout.objects.filter(pk=rollout_id).update(phase=Phase.WARMING)
    rollout = Rollout.objects.get(pk=rollout_id)
    plan = factories.make_plan(rollout.model, number=2, weights={"1": 90, "2": 10})
    update_if(rollout, phase=Phase.STEPPING, step=0, plan=plan.number, weighted_at=timezone.now())


@pytest.mark.django_db
def test_a_rollout_is_started_listed_and_read(as_operator: APIClient, model: Model) -> None:
    answer = start(as_operator)

    assert answer.status_code == 201
    made = answer.json()
    assert (made["candidate"], made["stable"], made["phase"], made["base_plan"]) == (2, 1, "planned", 1)
    assert made["steps"][0]["state"] == "coming"
    listed = as_operator.get(f"{V1}/models/smollm2/rollouts/").json()["results"]
    assert [row["id"] for row in listed] == [made["id"]]
    found = as_operator.get(f"{V1}/rollouts/{made['id']}/").json()
    assert found["events"][0]["kind"] == "phase"
    assert found["verdict"] == {}
    assert found["proof"] is None
    assert as_operator.get(f"{V1}/rollouts/{made['id']}/readings/").json()["results"] == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"candidate": 1}, "has 100 % already"),
        ({"candidate": 9}, "no release"),
        ({"steps": [{"weight": 101}]}, "100"),
        ({"lanes": ["nowhere"]}, "nowhere"),
        ({"gates": {"beauty": {}}}, "beauty"),
        ({"force": True}, "no such field"),
        ({"gates": []}, "object"),
        ({"gates": {"ttft": {"limit_ratio": 0.1}}}, "no such setting"),
        ({"gates": {"errors": {"margin_ratio": 11}}}, "from 0 to 10"),
    ],
)
def test_bad_input_is_refused_and_makes_nothing(
    as_operator: APIClient, model: Model, body: dict[str, Any], words: str
) -> None:
    answer = start(as_operator, **body)

    assert answer.status_code in (400, 404, 422)
    assert words in answer.content.decode()
    assert not Rollout.objects.exists()


@pytest.mark.django_db
def test_a_dry_run_tells_what_a_start_would_do_and_starts_nothing(
    as_operator: APIClient, model: Model
) -> None:
    answer = start(as_operator, dry_run=True)

    assert answer.status_code == 200
    told = answer.json()
    assert {name: told[name] for name in ("dry_run", "model", "candidate", "stable", "base_plan")} == {
        "dry_run": True, "model": "smollm2", "candidate": 2, "stable": 1, "base_plan": 1,
    }  # fmt: skip
    assert told["steps"] == [{"weight": 10, "soak_s": 60, "min_requests": 5, "lanes": []}]
    assert (told["replicas"], told["hold_s"], told["accept_outage"]) == ({"": 1}, 60, False)
    assert told["diff"]["changes"] == []
    assert told["fit"]["outcome"] == "fits_beside"
    assert told["fit"]["places"][0]["node"] == "node-a"
    assert [warning["code"] for warning in told["warnings"]] == ["nothing_changed"]
    assert told["refusal"] == ""
    assert start(as_operator, dry_run=True, candidate=1).status_code == 400
    assert not Rollout.objects.exists()
    assert not RolloutEvent.objects.exists()


@pytest.mark.django_db
def test_fc16_a_start_without_a_place_is_refused_and_a_dry_run_says_so(
    as_operator: APIClient, model: Model
) -> None:
    Runtime.objects.all().delete()

    told = start(as_operator, dry_run=True)
    answer = start(as_operator)

    assert told.status_code == 200
    assert told.json()["fit"]["missing"] == ["No node has a runtime 'sim-1'."]
    assert "There is no place" in told.json()["refusal"]
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["message"] == told.json()["refusal"]
    assert (error["details"]["outcome"], error["details"]["outage_s"]) == ("impossible", None)
    assert not Rollout.objects.exists()


@pytest.mark.django_db
def test_before_the_first_weight_a_rollback_aborts(as_operator: APIClient, model: Model) -> None:
    made = start(as_operator).json()

    answer = as_operator.post(f"{V1}/rollouts/{made['id']}/rollback/", {}, format="json")

    assert (answer.json()["phase"], answer.json()["rollback_plan"]) == ("rolled_back", None)
    assert Plan.objects.count() == 1


@pytest.mark.django_db
def test_a_repeated_start_with_its_key_is_the_first_one(as_operator: APIClient, model: Model) -> None:
    path = f"{V1}/models/smollm2/rollouts/"

    answers = [
        as_operator.post(path, START, format="json", headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]

    assert answers[0].json() == answers[1].json()
    assert Rollout.objects.count() == 1


@pytest.mark.django_db
def test_a_viewer_reads_and_moves_nothing(as_viewer: APIClient, as_operator: APIClient, model: Model) -> None:
    made = start(as_operator).json()

    assert as_viewer.get(f"{V1}/rollouts/{made['id']}/").status_code == 200
    assert start(as_viewer).status_code == 403
    for action in ("pause", "resume", "promote", "rollback", "fence"):
        assert as_viewer.post(f"{V1}/rollouts/{made['id']}/{action}/").status_code == 403
    assert Rollout.objects.get().phase == Phase.PLANNED


@pytest.mark.django_db
def test_pause_resume_promote_and_rollback_repeat_without_harm(as_operator: APIClient, model: Model) -> None:
    path = f"{V1}/rollouts/{start(as_operator).json()['id']}"
    give_weight(Rollout.objects.get().pk)

    def post(action: str) -> tuple[str, bool]:
        answer = as_operator.post(f"{path}/{action}/", {}, format="json")
        assert answer.status_code == 200, answer.content
        return answer.json()["phase"], answer.json()["changed"]

    assert post("pause") == ("paused", True)
    assert post("pause") == ("paused", False)
    assert post("resume") == ("stepping", True)
    assert post("resume") == ("stepping", False)
    assert post("promote") == ("stepping", True)
    assert post("promote") == ("stepping", False)
    assert post("rollback") == ("rolling_back", True)
    assert post("rollback") == ("rolling_back", False)
    proof = as_operator.get(f"{path}/proof/").json()
    assert proof["complete"] is False
    assert as_operator.post(f"{path}/pause/").status_code == 409
    assert Plan.objects.count() == 3


@pytest.mark.django_db
def test_a_rollback_says_what_becomes_of_streams(as_operator: APIClient, model: Model) -> None:
    made = start(as_operator).json()
    give_weight(made["id"])

    refused = as_operator.post(
        f"{V1}/rollouts/{made['id']}/rollback/", {"end_after_tokens": -1}, format="json"
    )
    assert refused.status_code == 400
    as_operator.post(f"{V1}/rollouts/{made['id']}/rollback/", {"end_after_tokens": 16}, format="json")

    assert Rollout.objects.get().streams == {"end_after_tokens": 16}


@pytest.mark.django_db(transaction=True)
def test_fc13_twenty_parallel_starts_make_one_rollout(operator: User) -> None:
    factories.make_routing_state()
    make_model()

    answers = race(operator, f"{V1}/models/smollm2/rollouts/", [START] * 20, key=None)

    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 19
    assert Rollout.objects.count() == 1
    assert AuditEntry.objects.filter(action="rollout.start").count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("action", "audited"), [("promote", "rollout.promote"), ("rollback", "rollout.rollback")]
)
def test_fc13_twenty_parallel_clicks_do_it_once(operator: User, action: str, audited: str) -> None:
    factories.make_routing_state()
    make_model()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {factories.make_token(operator, name='one')}")
    made = start(client).json()
    give_weight(made["id"])
    plans = Plan.objects.count()

    answers = race(operator, f"{V1}/rollouts/{made['id']}/{action}/", [{}] * 20, key=None)

    assert {answer.status_code for answer in answers} == {200}
    assert sum(answer.json()["changed"] for answer in answers) == 1
    assert AuditEntry.objects.filter(action=audited).count() == 1
    assert RolloutEvent.objects.filter(kind="operator").count() == 1
    assert Plan.objects.count() == plans + (action == "rollback")


@pytest.mark.django_db
def test_the_schema_names_each_gate_with_its_ranges_and_defaults() -> None:
    parts = load_schema()["components"]["schemas"]

    assert set(parts["GatesInputRequest"]["properties"]) == set(GATES)
    ttft = parts["TtftGateInputRequest"]["properties"]
    assert set(ttft) == {"margin_ratio", "limit_s", "dry_run"}
    assert (ttft["margin_ratio"]["default"], ttft["margin_ratio"]["maximum"]) == (0.1, 10.0)
    assert parts["ErrorsGateInputRequest"]["properties"]["limit_ratio"]["default"] == 0.05
    assert "stages" in parts["DeviceFit"]["properties"]
