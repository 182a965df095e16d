"""Each page and action: who may, who may not, and where the unknown visitor is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from pool.models import AuditEntry, Node, Replica, Scale
from tests import factories

SignIn = Callable[[User], Client]

VIEWED = [
    "/",
    "/models/",
    "/models/model-0/",
    "/models/model-0/control/",
    "/replicas/",
    "/nodes/",
    "/profiles/",
    "/keys/",
    "/audit/",
    "/account/",
]
OPERATED = [
    "/models/new/",
    "/models/model-0/plan/",
    "/models/model-0/lanes/",
    "/models/model-0/gateway/",
    "/models/model-0/versions/new/",
    "/models/model-0/releases/new/",
    "/profiles/new/",
    "/playground/",
]
ADMINISTERED = ["/keys/new/", "/keys/key-0/"]
ACTIONS = [
    "/models/model-0/rollback/",
    "/models/model-0/plan/preview/",
    "/models/model-0/lanes/preview/",
    "/models/model-0/gateway/preview/",
    "/models/model-0/releases/1/scale/",
    "/models/model-0/versions/v1/retire/",
    "/models/model-0/versions/v1/verify/",
    "/nodes/node-0/drain/",
    "/profiles/check/",
]


@pytest.fixture(autouse=True)
def _pool(routing_state: None) -> None:
    factories.make_pool()


@pytest.mark.parametrize("path", VIEWED)
def test_a_viewer_sees_the_page(viewer: User, sign_in: SignIn, path: str) -> None:
    answer = sign_in(viewer).get(path)

    assert answer.status_code == 200
    assert "Content-Security-Policy" in answer.headers


@pytest.mark.parametrize("path", VIEWED + OPERATED + ADMINISTERED)
def test_nobody_is_sent_to_the_sign_in(path: str) -> None:
    answer = Client().get(path)

    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/sign-in/")


@pytest.mark.parametrize("path", VIEWED + OPERATED + ADMINISTERED)
def test_a_user_without_a_group_is_refused(stranger: User, sign_in: SignIn, path: str) -> None:
    assert sign_in(stranger).get(path).status_code == 403


@pytest.mark.parametrize("path", OPERATED)
def test_an_operator_opens_a_form_that_a_viewer_may_not(
    operator: User, viewer: User, sign_in: SignIn, path: str
) -> None:
    assert sign_in(operator).get(path).status_code == 200
    assert sign_in(viewer).get(path).status_code == 403


@pytest.mark.parametrize("path", ADMINISTERED)
def test_only_an_administrator_makes_keys(admin: User, operator: User, sign_in: SignIn, path: str) -> None:
    assert sign_in(admin).get(path).status_code == 200
    assert sign_in(operator).get(path).status_code == 403


@pytest.mark.parametrize("path", ACTIONS)
def test_a_viewer_changes_nothing(viewer: User, sign_in: SignIn, path: str) -> None:
    before = AuditEntry.objects.count()

    answer = sign_in(viewer).post(path, {"replicas": "3"})

    assert answer.status_code == 403
    assert AuditEntry.objects.count() == before
    assert Scale.objects.get().replicas == 1
    assert Node.objects.get().wish == "serve"


def test_a_viewer_neither_drains_nor_restarts(viewer: User, sign_in: SignIn) -> None:
    replica = Replica.objects.get()

    for action in ("drain", "restart"):
        assert sign_in(viewer).post(f"/replicas/{replica.pk}/{action}/").status_code == 403

    replica.refresh_from_db()
    assert (replica.wish, replica.restart_asked) == ("run", False)


def test_a_viewer_sees_no_button_that_the_server_would_refuse(viewer: User, sign_in: SignIn) -> None:
    page = sign_in(viewer).get("/models/model-0/").content.decode()

    assert "Roll back" not in page
    assert "data-scale" not in page


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_needs_a_csrf_token(operator: User, path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    assert client.post(path).status_code == 403


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_is_no_get(operator: User, sign_in: SignIn, path: str) -> None:
    assert sign_in(operator).get(path).status_code == 405
