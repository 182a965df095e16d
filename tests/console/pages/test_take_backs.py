"""The one click back on the overview, the list of models and the model's page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from pool.models import Plan, Rollout
from pool.queries.take_backs import load_take_backs
from tests import factories
from tests.browser.seed_rollouts import MODEL, seed_rollouts

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
PAGES = ("/", "/models/", f"/models/{MODEL}/")


@pytest.fixture
def running(routing_state: None) -> Rollout:
    return seed_rollouts()[0]


def buttons(client: Client, path: str) -> list[str]:
    """Those that stand there; one of the template is for rows to come."""
    page = client.get(path).content.decode()
    parts = page.split("<button ")[1:]
    tags = [part.split(">")[0] for part in parts if "data-take-back" in part.split(">")[0]]
    return [tag for tag in tags if not tag.endswith("hidden")]


@pytest.mark.parametrize("path", PAGES)
def test_a_rollout_is_taken_back_from_every_page_of_its_model(
    operator: User, sign_in: SignIn, running: Rollout, path: str
) -> None:
    (tag,) = [tag for tag in buttons(sign_in(operator), path) if MODEL in tag]

    assert f'data-action="/rollouts/{running.pk}/rollback/"' in tag
    assert f"Plan 1 of {MODEL} comes back in force: release 2 gets 0 %" in tag


@pytest.mark.parametrize("path", PAGES)
def test_without_a_rollout_the_older_plan_is_put_back(
    operator: User, sign_in: SignIn, running: Rollout, path: str
) -> None:
    Rollout.objects.filter(pk=running.pk).update(phase="promoted", ended_at=timezone.now())

    (tag,) = [tag for tag in buttons(sign_in(operator), path) if MODEL in tag]

    assert f'data-action="/models/{MODEL}/rollback/"' in tag
    assert f"Plan 1 of {MODEL} is put back within a second: release 1: 100 %." in tag


def test_the_button_is_there_only_when_something_can_be_taken_back(
    operator: User, sign_in: SignIn, routing_state: None
) -> None:
    client = sign_in(operator)
    model = factories.make_model("calm")
    factories.make_plan(model, number=1, weights={"1": 100})

    assert buttons(client, "/") == []

    factories.make_plan(model, number=2, weights={"1": 100}, rollback_of=1)
    assert buttons(client, "/models/") == []


def test_a_viewer_has_no_button(viewer: User, sign_in: SignIn, running: Rollout) -> None:
    for path in PAGES:
        assert buttons(sign_in(viewer), path) == []


def test_releases_tell_their_rollout_and_may_be_rolled_out_when_none_runs(
    operator: User, sign_in: SignIn, running: Rollout
) -> None:
    client = sign_in(operator)
    during = client.get(f"/models/{MODEL}/").content.decode()
    Rollout.objects.filter(pk=running.pk).update(phase="rolled_back", ended_at=timezone.now())

    after = client.get(f"/models/{MODEL}/").content.decode()

    assert f'href="/rollouts/{running.pk}/"' in during
    assert f'href="/models/{MODEL}/rollouts/new/?candidate=3" data-show="can_roll_out" hidden' in during
    assert f'href="/models/{MODEL}/rollouts/new/?candidate=3" data-show="can_roll_out">' in after
    assert "rolled back" in after


def test_take_backs_of_many_models_cost_two_queries(running: Rollout, django_assert_num_queries: Any) -> None:
    for number in range(5):
        model = factories.make_model(f"other-{number}")
        factories.make_plan(model, number=1, in_force=False, weights={"1": 100})
        factories.make_plan(model, number=2, weights={"1": 50, "2": 50})

    with django_assert_num_queries(2):
        found = load_take_backs()

    target = found["other-3"].target
    assert target is not None
    assert target.number == 1
    assert found[MODEL].rollout is not None
    assert found[MODEL].target is None


def test_a_long_history_is_not_read_whole(routing_state: None) -> None:
    model = factories.make_model("old")
    Plan.objects.bulk_create(
        Plan(model=model, number=number, weights={"1" if number > 1 else "2": 100})
        for number in range(1, 100)
    )
    factories.make_plan(model, number=100, weights={"1": 100})

    assert load_take_backs("old")["old"].target is None
