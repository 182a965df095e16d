from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from console.access import (
    NotAllowed,
    Right,
    RoleRequired,
    can,
    page_right,
    require,
    sessions_with,
    socket_may,
    template_rights,
)
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("group", "held"),
    [
        ("viewer", {Right.VIEW}),
        ("operator", {Right.VIEW, Right.OPERATE}),
        ("admin", set(Right)),
        ("unknown-group", set()),
        (None, set()),
    ],
)
def test_a_group_gives_its_rights_and_no_others(group: str | None, held: set[Right]) -> None:
    user = factories.make_user("someone", group=group)

    assert {right for right in Right if can(user, right)} == held


def test_a_superuser_may_all_and_an_inactive_or_unknown_one_nothing(admin: User) -> None:
    admin.is_active = False

    assert can(User.objects.create_superuser("root"), Right.ADMINISTER)
    assert not can(admin, Right.VIEW)
    assert not can(AnonymousUser(), Right.VIEW)


def test_rights_are_read_once_per_user_object(operator: User, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        assert all(can(operator, right) for right in (Right.VIEW, Right.OPERATE))


def test_a_missing_right_names_itself(viewer: User) -> None:
    with pytest.raises(NotAllowed) as caught:
        require(viewer, Right.OPERATE)

    assert caught.value.details == {"right": "operate"}


@page_right(Right.OPERATE)
def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def ask(user: User | AnonymousUser, *, htmx: bool = False) -> HttpRequest:
    request = RequestFactory().get("/models/")
    request.user = user
    request.htmx = htmx  # type: ignore[attr-defined]
    return request


def test_a_page_sends_strangers_to_sign_in_and_back(operator: User) -> None:
    answer = page(ask(AnonymousUser()))

    assert answer.status_code == 302
    assert answer["Location"] == "/sign-in/?next=/models/"
    assert page(ask(operator)).status_code == 200


def test_a_partial_update_is_told_to_go_to_sign_in() -> None:
    answer = page(ask(AnonymousUser(), htmx=True))

    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/sign-in/")


def test_a_page_refuses_who_lacks_the_right(viewer: User) -> None:
    with pytest.raises(NotAllowed):
        page(ask(viewer))


class Silent(APIView):
    """States no rights."""


class Readable(APIView):
    rights = {"GET": Right.VIEW}


@pytest.mark.parametrize(
    ("view", "method", "allowed"),
    [
        (Silent, "GET", False),
        (Silent, "OPTIONS", False),
        (Readable, "GET", True),
        (Readable, "HEAD", True),
        (Readable, "OPTIONS", True),
        (Readable, "POST", False),
    ],
)
def test_an_api_view_that_states_no_right_is_refused_even_to_administrators(
    admin: User, view: type[APIView], method: str, allowed: bool
) -> None:
    permission: BasePermission = RoleRequired()
    request = Request(RequestFactory().generic(method, "/"))
    request.user = admin

    assert permission.has_permission(request, view()) is allowed


def test_templates_learn_what_to_hide(operator: User) -> None:
    assert template_rights(ask(operator)) == {
        "can_view": True,
        "can_operate": True,
        "can_administer": False,
        "can_capture": False,
    }
    assert template_rights(HttpRequest()) == {
        "can_view": False,
        "can_operate": False,
        "can_administer": False,
        "can_capture": False,
    }


def socket_of(client: Client) -> dict[str, object]:
    return {"session": SessionStore(client.session.session_key)}


def test_a_socket_has_the_rights_of_its_session(sign_in: Any, viewer: User) -> None:
    scope = socket_of(sign_in(viewer))

    assert socket_may(scope, Right.VIEW)
    assert not socket_may(scope, Right.OPERATE)
    assert not socket_may({}, Right.VIEW)


def test_a_socket_loses_its_right_with_sign_out_role_or_account(sign_in: Any, viewer: User) -> None:
    client = sign_in(viewer)
    scope = socket_of(client)

    viewer.groups.clear()
    assert not socket_may(scope, Right.VIEW)  # FC-54

    client.logout()
    assert not socket_may(scope, Right.VIEW)


def test_many_sessions_are_asked_together(db: None, django_assert_num_queries: Any) -> None:
    """FC-54: as `socket_may`, at a fixed number of queries however many sockets are open."""
    users = [factories.make_user(f"user-{number}", group="viewer") for number in range(5)]
    keys = [_session_key(user) for user in users]
    stranger, gone = _session_key(factories.make_user("sid", group=None)), _session_key(users[0])
    User.objects.filter(pk=users[1].pk).update(is_active=False)
    users[2].set_password("another-long-one")
    users[2].save()
    Session.objects.filter(pk=keys[3]).delete()

    with django_assert_num_queries(3):
        allowed = sessions_with([*keys, stranger, gone, "never-was"], Right.VIEW)

    assert allowed == {keys[0], gone, keys[4]}
    assert sessions_with(keys, Right.OPERATE) == set()


def _session_key(user: User) -> str:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return str(client.session.session_key)
