from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from pool.models import AuditEntry, GoldenPrompt, GoldenRun, Intent, Replica
from tests import factories

pytestmark = pytest.mark.django_db
PATH = "/api/v1/models/smollm2/golden-prompts/"
RECORD = "/api/v1/models/smollm2/golden-recordings/"
BODY: dict[str, Any] = {
    "name": "capital",
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Capital of France?"},
    ],
    "expected": "Paris",
}


@pytest.fixture(autouse=True)
def _model() -> None:
    model = factories.make_model()
    factories.make_plan(model)
    factories.make_replica(factories.make_release(model), node=factories.make_node(), id="r1")


def test_a_prompt_is_made_read_changed_and_removed(as_operator: APIClient) -> None:
    made = as_operator.post(PATH, BODY)
    changed = as_operator.put(f"{PATH}capital/", {**BODY, "match": "contains", "hot": True})
    listed = as_operator.get(PATH).json()["results"]
    removed = as_operator.delete(f"{PATH}capital/")

    assert made.status_code == 201
    assert (made.json()["messages"], made.json()["newest"]) == (BODY["messages"], None)
    assert (changed.json()["match"], changed.json()["hot"]) == ("contains", True)
    assert [row["name"] for row in listed] == ["capital"]
    assert removed.status_code == 200
    assert not GoldenPrompt.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="golden.").order_by("id")
    assert [row.action for row in actions] == ["golden.create", "golden.change", "golden.remove"]
    assert all("Paris" not in str(row.details) for row in actions)


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": "hello"},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"match": "regex", "expected": "("},
        {"match": "logprob"},
        {"max_tokens": 4096},
        {"name": "Not A Name"},
    ],
)
def test_what_cannot_be_asked_is_refused(as_operator: APIClient, change: dict[str, Any]) -> None:
    assert as_operator.post(PATH, BODY | change).status_code == 400
    assert not GoldenPrompt.objects.exists()


def test_a_name_is_taken_once(as_operator: APIClient) -> None:
    as_operator.post(PATH, BODY)

    assert as_operator.post(PATH, BODY).status_code == 409


def test_answers_are_recorded_from_stable_one_at_a_time(as_operator: APIClient) -> None:
    as_operator.post(PATH, BODY | {"expected": ""})

    asked = as_operator.post(RECORD)
    again = as_operator.post(RECORD)

    assert asked.status_code == 201
    assert (asked.json()["stage"], asked.json()["replica"], asked.json()["phase"]) == (
        "record",
        "r1",
        "waiting",
    )
    assert again.status_code == 409
    assert (GoldenRun.objects.count(), Intent.objects.get().action) == (1, "golden")
    runs = as_operator.get("/api/v1/models/smollm2/golden-runs/").json()["results"]
    assert [run["judgement"] for run in runs] == [""]


def test_without_a_ready_stable_replica_nothing_is_recorded(as_operator: APIClient) -> None:
    as_operator.post(PATH, BODY | {"expected": ""})
    Replica.objects.update(phase="draining")

    answer = as_operator.post(RECORD)

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_stable_replica")


def test_a_viewer_reads_and_changes_nothing(as_viewer: APIClient) -> None:
    assert as_viewer.get(PATH).json() == {"results": [], "next": None}
    assert as_viewer.post(PATH, BODY).status_code == 403
    assert as_viewer.post(RECORD).status_code == 403
    assert as_viewer.get("/api/v1/models/nobody/golden-prompts/").status_code == 404
    assert as_viewer.get(f"{PATH}nothing/").status_code == 404
