"""The web process itself, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests import factories

START_LIMIT_S = 60.0
POOL_SIZE = 4


@dataclass
class Web:
    port: int
    process: subprocess.Popen[bytes]

    def get(
        self, path: str, *, headers: dict[str, str] | None = None, timeout_s: float = 15.0
    ) -> tuple[int, bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            link.putrequest("GET", path)
            for name, value in (headers or {}).items():
                link.putheader(name, value)
            link.endheaders()
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()


Start = Callable[..., Web]


@pytest.fixture
def start_web() -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> Web:
        pretend_collected()
        port = find_free_port()
        env = os.environ | {
            "SLUICE_WEB_PORT": str(port),
            "SLUICE_DATABASE_POOL": str(POOL_SIZE),
            "SLUICE_WEB_THREADS": "3",
            "SLUICE_PROCESS": f"web-{port}",
        }
        env.pop("COVERAGE_PROCESS_START", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "console.serve"], env=env | variables, cwd=settings.BASE_DIR
        )
        processes.append(process)
        web = Web(port, process)
        wait_until_alive(web)
        return web

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def pretend_collected() -> None:
    """No page is shown here, so no file is needed."""
    root = Path(settings.STATIC_ROOT)
    root.mkdir(parents=True, exist_ok=True)
    (root / "staticfiles.json").write_text('{"version": "1.1", "hash": "", "paths": {}}')


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_alive(web: Web) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        assert web.process.poll() is None, "web ended"
        try:
            assert web.get("/healthz")[0] == 200
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("web did not come up")


def test_database_url() -> str:
    name = connection.settings_dict["NAME"]
    return os.environ["SLUICE_DATABASE_URL"].replace("/sluice?", f"/{name}?")


test_database_url.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def web(transactional_db: None, start_web: Start) -> Web:
    factories.make_routing_state()
    return start_web(SLUICE_DATABASE_URL=test_database_url())


@pytest.fixture
def token(web: Web) -> str:
    return factories.make_token(factories.make_user("vera"))


def test_it_serves_pages_api_and_sockets_and_ends_within_five_seconds(web: Web, token: str) -> None:
    assert web.get("/readyz") == (200, b'{"ready": true}')
    headers = {"Authorization": f"Bearer {token}"}
    assert web.get("/api/v1/models/", headers=headers) == (200, b'{"results":[],"next":null}')
    assert web.get("/api/v1/audit/?subject=%C3%A9", headers=headers)[0] == 200
    assert web.get("/api/v1/models/", headers={"Authorization": "Bearer slt_none"})[0] == 401

    assert_socket_refused(web, path="/nothing/", origin=f"http://127.0.0.1:{web.port}")
    assert_socket_refused(web, path="/live/", origin="http://evil.example")  # FC-53
    assert_raw_query_is_refused(web, token)

    web.process.send_signal(signal.SIGTERM)
    assert web.process.wait(timeout=5.5) in (0, -signal.SIGTERM)


def assert_socket_refused(web: Web, *, path: str, origin: str) -> None:
    with (
        pytest.raises(InvalidStatus) as caught,
        connect(f"ws://127.0.0.1:{web.port}{path}", origin=Origin(origin)),
    ):
        pass
    assert caught.value.response.status_code == 403


def assert_raw_query_is_refused(web: Web, token: str) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=5) as raw:
        raw.sendall(
            b"GET /api/v1/audit/?subject=\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
        )
        assert b"400 Bad Request" in raw.recv(64)


def test_senders_that_never_finish_hold_no_thread(web: Web) -> None:
    head = b"POST /sign-in/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf"
    slow = [socket.create_connection(("127.0.0.1", web.port), timeout=5) for _ in range(12)]
    try:
        for sender in slow:
            sender.sendall(head)

        assert web.get("/readyz", timeout_s=3.0)[0] == 200
    finally:
        for sender in slow:
            sender.close()


def test_a_body_in_chunks_is_read_and_one_over_the_limit_refused(web: Web, token: str) -> None:
    head = b"POST /api/v1/tokens/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer "
    head += token.encode() + b"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

    assert b" 201 " in send_raw(web, head + b'7\r\n{"name"\r\n5\r\n:"a"}\r\n0\r\n\r\n')
    assert b" 413 " in send_raw(web, head + b"180000\r\n" + b" " * 0x180000 + b"\r\n0\r\n\r\n")


def send_raw(web: Web, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as raw:
        with contextlib.suppress(ConnectionError):
            raw.sendall(content)
        return raw.recv(64)


def count_connections(web: Web) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [f"web-{web.port}"]
        )
        row: Any = cursor.fetchone()
    return int(row[0])


def test_many_requests_hold_no_more_connections_than_the_pool_has(web: Web, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: web.get("/api/v1/status/", headers=headers)[0], range(200)))

    assert set(answers) == {200}
    assert count_connections(web) <= POOL_SIZE  # FC-58


def test_without_a_database_it_starts_and_says_so_quickly(start_web: Start) -> None:
    web = start_web(SLUICE_DATABASE_URL="postgresql://sluice@/sluice?host=/nonexistent")
    headers = {"Authorization": "Bearer slt_unknown_but_not_wrong"}

    started_at = time.monotonic()
    status, body = web.get("/api/v1/models/", headers=headers)
    took_s = time.monotonic() - started_at

    assert status == 503  # FC-57: unknown is not invalid
    assert json.loads(body)["error"]["code"] == "database_unavailable"
    assert took_s < 3.0
    assert web.get("/readyz")[0] == 503
    assert web.get("/healthz")[0] == 200
    started_at = time.monotonic()
    assert {web.get("/api/v1/models/", headers=headers)[0] for _ in range(10)} == {503}
    assert time.monotonic() - started_at < 4.0, "only one request a second waits for the database"


def test_it_works_within_ten_seconds_of_the_databases_return(
    transactional_db: None, start_web: Start, tmp_path: Path
) -> None:
    factories.make_routing_state()
    url = test_database_url()
    sockets, moved = url.rpartition("host=")[2], tmp_path / "s"
    web = start_web(SLUICE_DATABASE_URL=url.replace(f"host={sockets}", f"host={moved}"))
    assert web.get("/readyz")[0] == 503

    moved.symlink_to(sockets)
    returned_at = time.monotonic()
    while web.get("/readyz")[0] != 200:
        assert time.monotonic() - returned_at < 10.0  # FC-57
        time.sleep(0.2)


def test_a_port_in_use_is_named(start_web: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "console.serve"],
            env=os.environ | {"SLUICE_WEB_PORT": str(port)},
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "SLUICE_WEB_PORT" in done.stderr
