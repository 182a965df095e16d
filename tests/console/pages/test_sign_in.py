"""Signing in and out, and the lock after repeated failures."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.test import Client

from tests import factories

PASSWORD = "correct-horse"


@pytest.fixture(autouse=True)
def _user(routing_state: None) -> None:
    factories.make_user("otto", group="operator", password=PASSWORD)


def _try(client: Client, password: str, **given: str) -> int:
    return client.post("/sign-in/", {"username": "otto", "password": password, **given}).status_code


def test_a_sign_in_leads_to_where_one_wanted() -> None:
    client = Client()

    answer = client.post("/sign-in/", {"username": "otto", "password": PASSWORD, "next": "/nodes/"})

    assert answer.headers["Location"] == "/nodes/"
    assert client.get("/").status_code == 200


def test_a_foreign_goal_is_not_followed() -> None:
    answer = Client().post(
        "/sign-in/", {"username": "otto", "password": PASSWORD, "next": "https://evil.example/"}
    )

    assert answer.headers["Location"] == "/"


def test_a_wrong_password_is_told_without_saying_which_was_wrong() -> None:
    page = Client().post("/sign-in/", {"username": "otto", "password": "wrong"}).content.decode()

    assert "do not match" in page


def test_too_many_failures_lock_for_a_moment() -> None:
    client = Client()

    answers = [_try(client, "wrong") for _ in range(settings.AXES_FAILURE_LIMIT + 1)]

    assert answers[0] == 200
    assert answers[-1] == 429
    assert (
        "locked for a moment"
        in client.post("/sign-in/", {"username": "otto", "password": PASSWORD}).content.decode()
    )


def test_sign_out_ends_the_session() -> None:
    client = Client()
    _try(client, PASSWORD)

    assert client.get("/sign-out/").status_code == 405
    assert client.post("/sign-out/").status_code == 302
    assert client.get("/").status_code == 302
