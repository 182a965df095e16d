"""Short blocking calls to an engine, over a Unix socket or TCP: no proxy, no redirect, limited answers."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pool.domain.errors import PoolError

MAX_ANSWER_BYTES = 4 << 20
UNIX_PREFIX = "unix:"


class EngineUnreachable(PoolError):
    """Nobody answers at the engine's address, or the answer was cut or late."""

    code: ClassVar[str] = "engine_unreachable"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as exc:
            raise EngineUnreachable("The engine's answer is not JSON.", status=self.status) from exc


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, *, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def open_connection(address: str, *, timeout_s: float) -> http.client.HTTPConnection:
    if address.startswith(UNIX_PREFIX):
        return UnixConnection(address.removeprefix(UNIX_PREFIX), timeout=timeout_s)
    parts = urlsplit(address)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)


def call(
    address: str,
    path: str,
    *,
    engine_key: str,
    body: dict[str, Any] | None = None,
    timeout_s: float = 1.0,
) -> Answer:
    """GET without a body, POST with one. Raises EngineUnreachable."""
    with _errors(path):
        connection = open_connection(address, timeout_s=timeout_s)
        try:
            response = send(connection, path, engine_key=engine_key, body=body)
            return Answer(response.status, response.read(MAX_ANSWER_BYTES))
        finally:
            connection.close()


def send(
    connection: http.client.HTTPConnection, path: str, *, engine_key: str, body: dict[str, Any] | None
) -> http.client.HTTPResponse:
    headers = {"Authorization": f"Bearer {engine_key}"} if engine_key else {}
    if body is None:
        connection.request("GET", path, headers=headers)
    else:
        headers["Content-Type"] = "application/json"
        connection.request("POST", path, body=json.dumps(body), headers=headers)
    return connection.getresponse()


def read_events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each server-sent event of a streamed answer, until it ends."""
    for line in response:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode()


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as exc:
        raise EngineUnreachable("The engine does not answer.", path=path, cause=type(exc).__name__) from exc


def guard(path: str) -> Any:
    """Turns socket and protocol errors of the block into EngineUnreachable."""
    return _errors(path)
