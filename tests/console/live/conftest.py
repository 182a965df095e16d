"""Sockets as browsers open them: with a session cookie and an Origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from tests import factories

LONGEST_WAIT_S = 8


class Socket:
    """A browser's end of a socket; Channels' own test client needs a web server that is not installed."""

    def __init__(self, application: object, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        scope = {
            "type": "websocket",
            "path": path.partition("?")[0],
            "query_string": path.partition("?")[2].encode(),
            "headers": headers,
            "subprotocols": [],
            "client": ["127.0.0.1", 50000],
        }
        self._ends: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]

    async def connect(self) -> bool:
        await self._ends.send_input({"type": "websocket.connect"})
        answer = await self.receive()
        return bool(answer["type"] == "websocket.accept")

    async def send_text(self, text: str) -> None:
        await self._ends.send_input({"type": "websocket.receive", "text": text})

    async def send(self, message: dict[str, Any]) -> None:
        await self.send_text(json.dumps(message))

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._ends.receive_output(LONGEST_WAIT_S)
        return message

    async def disconnect(self) -> None:
        await self._ends.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._ends.wait(LONGEST_WAIT_S)


Open = Callable[..., Socket]


@pytest.fixture
def seeded(transactional_db: None) -> None:
    factories.make_routing_state()
    factories.make_pool()


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return str(client.cookies[settings.SESSION_COOKIE_NAME].value)


async def make_session(group: str | None = "viewer") -> str:
    made = await database_sync_to_async(lambda: session_of(factories.make_user("visitor", group=group)))()
    return str(made)


@pytest.fixture
def open_socket() -> Open:
    """Django's HTTP side looks for the folder of static files when the application is made, not before."""
    application = import_module("console.asgi").application

    def make(path: str, session: str = "", *, origin: str = "http://localhost") -> Socket:
        headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
        if session:
            headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={session}".encode()))
        return Socket(application, path, headers)

    return make


async def read_kind(socket: Socket, kind: str, *, limit: int = 40) -> dict[str, Any]:
    """The next frame of this kind; beats and others in between are passed over."""
    for _ in range(limit):
        message = await socket.receive()
        assert message["type"] == "websocket.send", message
        frame: dict[str, Any] = json.loads(message["text"])
        if frame["type"] == kind:
            return frame
    raise AssertionError(f"no {kind} came")


async def read_close(socket: Socket) -> int:
    for _ in range(40):
        message = await socket.receive()
        if message["type"] == "websocket.close":
            return int(message["code"])
    raise AssertionError("the socket stays open")
