from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from pool.models import Node
from tests import factories

SignIn = Callable[[User], Client]
PATHS = ("/memory/", "/models/smollm2/memory/", "/replicas/r1/memory/")
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _pool(routing_state: None) -> None:
    node = factories.make_node()
    device = factories.make_device(node, measured_at=timezone.now())
    release = factories.make_release(factories.make_model())
    factories.make_replica(release, node=node, id="r1", device_uuids=[device.uuid])


@pytest.mark.parametrize("path", PATHS)
def test_each_page_shows_what_is_unknown_as_unknown(viewer: User, sign_in: SignIn, path: str) -> None:
    page = sign_in(viewer).get(path)

    assert page.status_code == 200
    assert "—" in page.content.decode()
    assert 'data-live="/live/' in page.content.decode()


@pytest.mark.parametrize("path", ["/models/nosuch/memory/", "/replicas/nosuch/memory/"])
def test_what_does_not_exist_is_not_found(viewer: User, sign_in: SignIn, path: str) -> None:
    assert sign_in(viewer).get(path).status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_a_hostile_name_is_text(viewer: User, sign_in: SignIn, path: str) -> None:
    """FC-55"""
    device = Node.objects.get().devices.get()
    type(device).objects.update(name=HOSTILE, reason_text=HOSTILE, usable=False)

    page = sign_in(viewer).get(path).content.decode()

    assert HOSTILE not in page


def test_an_empty_pool_says_what_to_do(viewer: User, sign_in: SignIn) -> None:
    page = sign_in(viewer).get("/memory/").content.decode()

    assert "./sluice worker --node NAME" in page
