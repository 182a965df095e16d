"""What every test stands on: no outside network, users by role, the groups and the routing state."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from console.database_gate import gate
from tests import factories

REAL_CONNECT = socket.socket.connect
# A busy machine is no fault of the code under test.
hypothesis.settings.register_profile("sluice", deadline=None)
hypothesis.settings.load_profile("sluice")


SHARED_INSTALLATION = "journeys"
REAL_INSTALLATION = "journeys on a real engine"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file share a process, and so do the journeys, which share an installation that takes long to start."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item.path)))


def _group_of(path: Path) -> str:
    if path.parent.name != SHARED_INSTALLATION or path.stem == "test_starts_and_stops":
        return str(path)
    return REAL_INSTALLATION if path.stem.startswith("test_real_") else SHARED_INSTALLATION


@pytest.fixture(autouse=True)
def _no_outside_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not _is_local(str(address[0])):
            raise AssertionError(f"a test tried to reach {address[0]}")
        REAL_CONNECT(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


def _is_local(host: str) -> bool:
    if host in ("localhost", ""):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def _plain_static_files(settings: Any) -> None:
    """Without a manifest: nothing has to be collected first."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
    settings.STORAGES = settings.STORAGES | {
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    }


@pytest.fixture(autouse=True)
def _open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that fakes a database failure closes the process's gate; the next one finds it open."""
    monkeypatch.setattr(gate, "_is_down", False)


@pytest.fixture(autouse=True, scope="session")
def _quick_password_hashes() -> None:
    """A sound hash costs a tenth of a second on purpose; hundreds of test users need none."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def routing_state(db: None) -> None:
    factories.make_routing_state()


@pytest.fixture
def viewer(db: None) -> User:
    return factories.make_user("vera", group="viewer")


@pytest.fixture
def operator(db: None) -> User:
    return factories.make_user("otto", group="operator")


@pytest.fixture
def admin(db: None) -> User:
    return factories.make_user("ada", group="admin")


@pytest.fixture
def stranger(db: None) -> User:
    """Can sign in, is in no group."""
    return factories.make_user("sid", group=None)


@pytest.fixture
def sign_in() -> Callable[[User], Client]:
    """A browser of that user."""

    def make(user: User) -> Client:
        client = Client()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make
