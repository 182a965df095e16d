"""A POST that is repeated, raced or cut is done once (FC-13)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from rest_framework.test import APIClient

from pool.models import AuditEntry, IdempotencyRecord, Key, Model, Plan, Release
from pool.services import catalog
from tests import factories
from tests.console.api.conftest import client_of

PATH = "/api/v1/models/"
KEYED = {"Idempotency-Key": "key-1"}


@pytest.mark.django_db
def test_a_repeated_post_gets_the_first_answer_and_does_nothing(as_operator: APIClient) -> None:
    first = as_operator.post(PATH, {"name": "m"}, headers=KEYED)
    second = as_operator.post(PATH, {"name": "m"}, headers=KEYED)

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert (second.get("Idempotent-Replay"), first.get("Idempotent-Replay")) == ("true", None)
    assert AuditEntry.objects.count() == 1


@pytest.mark.django_db
def test_the_same_key_for_another_body_or_path_is_a_conflict(as_operator: APIClient) -> None:
    as_operator.post(PATH, {"name": "m"}, headers=KEYED)

    for path, body in ((PATH, {"name": "other"}), ("/api/v1/profiles/", {"name": "m"})):
        answer = as_operator.post(path, body, headers=KEYED)

        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "idempotency_conflict"
    assert Model.objects.count() == 1


@pytest.mark.django_db
def test_two_users_may_choose_the_same_key(as_operator: APIClient, as_admin: APIClient) -> None:
    as_operator.post(PATH, {"name": "m"}, headers=KEYED)

    assert as_admin.post(PATH, {"name": "n"}, headers=KEYED).status_code == 201


@pytest.mark.django_db
def test_a_refused_post_leaves_its_key_free(as_operator: APIClient) -> None:
    as_operator.post(PATH, {"name": "BAD"}, headers=KEYED)

    assert not IdempotencyRecord.objects.exists()
    assert as_operator.post(PATH, {"name": "good"}, headers=KEYED).status_code == 201


@pytest.mark.django_db
def test_a_post_that_breaks_half_way_leaves_neither_change_nor_record(
    as_operator: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = catalog.create_model

    def create_and_break(*args: Any, **kwargs: Any) -> None:
        create(*args, **kwargs)
        raise RuntimeError("cut")

    as_operator.raise_request_exception = False
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "create_model", create_and_break)
        assert as_operator.post(PATH, {"name": "m"}, headers=KEYED).status_code == 500

    assert not Model.objects.exists()
    assert as_operator.post(PATH, {"name": "m"}, headers=KEYED).status_code == 201


@pytest.mark.django_db
def test_a_secret_is_not_stored_and_a_repetition_shows_null(as_admin: APIClient) -> None:
    first = as_admin.post("/api/v1/keys/", {"name": "app"}, headers=KEYED)
    second = as_admin.post("/api/v1/keys/", {"name": "app"}, headers=KEYED)

    assert first.json()["key"].startswith("sk-sluice-")
    assert second.json() == first.json() | {"key": None}
    assert first.json()["key"] not in str(IdempotencyRecord.objects.values()[0])
    assert Key.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["", "a" * 256, "naïve"])
def test_a_key_that_is_none_is_refused(as_operator: APIClient, key: str) -> None:
    answer = as_operator.post(PATH, {"name": "m"}, headers={"Idempotency-Key": key})

    assert answer.status_code == 400
    assert not Model.objects.exists()


def race(user: User, path: str, bodies: list[dict[str, Any]], *, key: str | None) -> list[Any]:
    """All at once, each with a connection of its own."""
    token = factories.make_token(user)
    headers = {"Idempotency-Key": key} if key else {}

    def post(body: dict[str, Any]) -> Any:
        try:
            client = APIClient()
            client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
            return client.post(path, body, format="json", headers=headers)
        finally:
            connection.close()

    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(post, bodies))


@pytest.mark.django_db(transaction=True)
def test_twenty_parallel_posts_with_one_key_are_done_once(operator: User) -> None:
    factories.make_routing_state()

    answers = race(operator, PATH, [{"name": "m"}] * 20, key="k")

    assert {answer.status_code for answer in answers} == {201}
    assert all(answer.json() == answers[0].json() for answer in answers)
    assert (Model.objects.count(), AuditEntry.objects.count()) == (1, 1)


@pytest.mark.django_db(transaction=True)
def test_twenty_parallel_posts_without_a_key_make_one_model_and_no_500(operator: User) -> None:
    factories.make_routing_state()

    answers = race(operator, PATH, [{"name": "m"}] * 20, key=None)

    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 19
    assert (Model.objects.count(), AuditEntry.objects.count()) == (1, 1)


@pytest.mark.django_db(transaction=True)
def test_twenty_parallel_rollbacks_write_one_plan(operator: User) -> None:
    factories.make_routing_state()
    model = factories.make_model("m")
    for number in (1, 2):
        factories.make_release(model, number=number)
        factories.make_plan(model, number=number, weights={str(number): 100})

    answers = race(operator, "/api/v1/models/m/rollback/", [{}] * 20, key=None)

    assert {(answer.status_code, answer.json()["plan"]["number"]) for answer in answers} == {(200, 3)}
    assert (Plan.objects.count(), AuditEntry.objects.count()) == (3, 1)


@pytest.mark.django_db(transaction=True)
def test_parallel_plans_are_numbered_without_gap(operator: User) -> None:
    factories.make_routing_state()
    factories.make_release(factories.make_model("m"))

    answers = race(operator, "/api/v1/models/m/plans/", [{"weights": {"1": 100}}] * 8, key=None)

    assert sorted(answer.json()["number"] for answer in answers) == list(range(1, 9))
    assert Release.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_administrators_cannot_remove_each_other(admin: User) -> None:
    second = factories.make_user("bob", group="admin")
    clients = [client_of(admin), client_of(second)]

    def remove(pair: tuple[APIClient, str]) -> int:
        try:
            return int(pair[0].patch(f"/api/v1/users/{pair[1]}/", {"is_active": False}).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        statuses = list(threads.map(remove, zip(clients, ["bob", "ada"], strict=True)))

    assert User.objects.filter(is_active=True).count() >= 1
    assert statuses.count(200) == 1
