from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from console.pages.golden import parse_conversation
from pool.models import GoldenPrompt, GoldenRun, Model, Rollout
from tests import factories

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
PATH = "/models/smollm2/golden/"
FORM: dict[str, Any] = {
    "name": "capital",
    "conversation": "system:\nBe short.\nuser:\nCapital of France?",
    "match": "exact",
    "expected": "",
    "max_tokens": 32,
    "required": "on",
}


@pytest.fixture
def viewer_client(viewer: User, sign_in: SignIn) -> Client:
    return sign_in(viewer)


@pytest.fixture
def operator_client(operator: User, sign_in: SignIn) -> Client:
    return sign_in(operator)


@pytest.fixture(autouse=True)
def _model() -> None:
    model = factories.make_model()
    factories.make_plan(model)
    factories.make_replica(factories.make_release(model), node=factories.make_node(), id="r1")


def test_roles_begin_messages_and_other_lines_belong_to_them() -> None:
    text = "system:\nBe short.\nuser:\nnote: two\n\nlines\nassistant:\nOk\nuser:\nAnd?"

    assert parse_conversation(text) == (
        ("system", "Be short."), ("user", "note: two\n\nlines"), ("assistant", "Ok"), ("user", "And?"),
    )  # fmt: skip
    assert parse_conversation("Hello") == (("user", "Hello"),)


def test_without_prompts_the_page_says_what_that_means(viewer_client: Client) -> None:
    page = viewer_client.get(PATH).content.decode()

    assert "an engine that computes wrongly looks healthy" in page
    assert "<textarea" not in page


def test_a_prompt_is_added_recorded_and_removed(operator_client: Client) -> None:
    added = operator_client.post(PATH, FORM)
    recorded = operator_client.post(f"{PATH}record/", {"prompt": "capital"}, follow=True)
    removed = operator_client.post(f"{PATH}remove/", {"prompt": "capital"})

    assert (added.status_code, removed.status_code) == (302, 302)
    assert "Answers are being recorded from r1" in recorded.content.decode()
    assert 'hx-trigger="every 3s"' in recorded.content.decode()
    assert GoldenRun.objects.get().questions[0]["messages"][0] == ["system", "Be short."]
    assert not GoldenPrompt.objects.exists()


def test_a_broken_rule_stands_on_the_page_and_nothing_is_kept(operator_client: Client) -> None:
    answer = operator_client.post(PATH, FORM | {"match": "regex", "expected": "("})

    assert answer.status_code == 422
    assert "not a regular expression" in answer.content.decode()
    assert not GoldenPrompt.objects.exists()


def test_what_the_newest_run_found_is_shown_and_escaped(viewer_client: Client) -> None:
    model = Model.objects.get()
    candidate = factories.make_release(model, number=2)
    rollout = Rollout.objects.create(
        id="ro1", model=model, candidate=candidate, stable=model.releases.get(number=1), base_plan=1, steps=[]
    )
    messages = [{"role": "user", "content": "<script>alert(1)</script>"}]
    GoldenPrompt.objects.create(model=model, name="capital", messages=messages, expected="Paris")
    outcome = {
        "name": "capital",
        "matches": False,
        "why": "The answer is empty.",
        "text": "",
        "required": True,
    }
    GoldenRun.objects.create(
        rollout=rollout, model=model, stage="before", replica_id="r1", generation=1, questions=[{}],
        phase="done", outcomes=[outcome], done_at=factories.T0,
    )  # fmt: skip

    page = viewer_client.get(PATH).content.decode()

    assert "differs" in page
    assert "The answer is empty." in page
    assert "<script>alert(1)" not in page


def test_what_cannot_be_undone_is_confirmed_first(operator_client: Client) -> None:
    operator_client.post(PATH, FORM | {"expected": "Paris"})

    page = operator_client.get(PATH).content.decode()

    assert 'data-golden="dialog-remove" data-prompt="capital"' in page
    assert 'data-golden="dialog-record" data-prompt="capital"' in page
    assert "every 3s" not in page


def test_a_viewer_changes_nothing(viewer_client: Client) -> None:
    assert viewer_client.post(PATH, FORM).status_code == 403
    assert viewer_client.post(f"{PATH}record/").status_code == 403
    assert viewer_client.post(f"{PATH}remove/", {"prompt": "x"}).status_code == 403
    assert viewer_client.get("/models/nobody/golden/").status_code == 404
