"""A whole installation as an operator has it: started by `./sluice up`, looked at from outside, hurt by signals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from launcher.identity import find_parent, find_start_time, is_running, is_zombie, list_pids
from launcher.layout import ROOT, Layout
from launcher.servers import postgres_url

COMMAND_S = 300
LOWEST_PORT, HIGHEST_PORT = 22_000, 32_000
ENGINE_MARKS = (b"workers.engines.sim_server", b"vllm.entrypoints", b"sluice-engine ")
# Known in advance, so that a test can look for them everywhere (FC-20).
SECRETS = {
    "SLUICE_SECRET_KEY": "canary-secret-key-3b1f60a9c2d84e57",
    "SLUICE_ADMIN_PASSWORD": "canary-admin-password-77aa",
    "SLUICE_API_TOKEN": "canary-api-token-51c0ffee90ab",
    "SLUICE_GATEWAY_KEY": "sk-sluice-canary0key0canary0key0canary0",
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Process:
    """A process at one moment: the same pid with another start is another process."""

    pid: int
    start: int | None

    @property
    def alive(self) -> bool:
        return is_running(self.pid, self.start)


@dataclass(frozen=True)
class Installed:
    layout: Layout
    variables: dict[str, str]

    @property
    def web_port(self) -> int:
        return int(self.variables["SLUICE_WEB_PORT"])

    @property
    def gateway_port(self) -> int:
        return int(self.variables["SLUICE_GATEWAY_PORT"])

    @property
    def key(self) -> str:
        return self.variables["SLUICE_GATEWAY_KEY"]

    # Commands.

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "sluice"), *arguments, "--data", str(self.layout.data)]
        return subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )

    def up(self, *arguments: str) -> None:
        started = self.run("up", "--detach", *arguments)
        assert started.returncode == 0, started.stdout + started.stderr

    def read_status(self) -> dict[str, Any]:
        status = json.loads(self.run("status", "--json").stdout)
        assert isinstance(status, dict)
        return status

    # What it says.

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout_s: float = 10.0,
        token: str | None = None,
    ) -> Answer:
        """The REST API, as a script with the token calls it."""
        token = token or self.variables["SLUICE_API_TOKEN"]
        return ask(self.web_port, method, f"/api/v1/{path}", body, key=token, timeout_s=timeout_s)

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json

    def post(self, path: str, body: object) -> Any:
        answer = self.call("POST", path, body)
        assert answer.status in (200, 201), answer
        return answer.json

    def chat(
        self, *, model: str = "smollm2", tokens: int = 8, timeout_s: float = 30.0, **extra: object
    ) -> Answer:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Who are you?"}],
            "max_tokens": tokens,
        }
        path = "/v1/chat/completions"
        return ask(self.gateway_port, "POST", path, body | extra, key=self.key, timeout_s=timeout_s)

    def replicas(self, **wanted: str) -> list[dict[str, Any]]:
        rows = self.get("replicas/?limit=200")["results"]
        return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

    def select(self, query: str) -> list[tuple[Any, ...]]:
        """Straight from PostgreSQL."""
        url = postgres_url(self.layout.sockets)
        with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def count_starts(self) -> int:
        return int(self.select("SELECT count(*) FROM pool_intent WHERE action = 'start'")[0][0])

    # What runs.

    def find(self, name: str) -> Process:
        """The process of that name from the supervisor's record; `nodehost` by its command line."""
        if name == "nodehost":
            return next(iter(self.find_by_command(b"workers.nodehost")))
        record = json.loads(self.layout.record.read_text())
        entry = next(one for one in record["processes"] if one["name"] == name)
        return Process(int(entry["pid"] or 0), entry["start_time"])

    def find_by_command(self, *words: bytes) -> list[Process]:
        found = []
        for pid in self.list_processes():
            command = read_proc(pid, "cmdline")
            if any(word in command for word in words):
                found.append(Process(pid, find_start_time(pid)))
        return found

    def engines(self) -> list[Process]:
        """Leaders of engines only: what they fork has their command line too."""
        found = self.find_by_command(*ENGINE_MARKS)
        pids = {process.pid for process in found}
        return [process for process in found if find_parent(process.pid) not in pids]

    def postgres_tree(self) -> list[int]:
        head = self.find("postgres").pid
        return [head, *(pid for pid in list_pids() if find_parent(pid) == head)]

    def list_processes(self) -> list[int]:
        """Everything alive whose command line or environment names this data folder, and what descends from it."""
        folder = os.fsencode(self.layout.data)
        ours = {
            pid
            for pid in list_pids()
            if pid != os.getpid() and folder in read_proc(pid, "environ") + read_proc(pid, "cmdline")
        }
        return sorted(with_descendants(ours))

    def zombies(self) -> list[int]:
        return [pid for pid in self.list_processes() if is_zombie(pid)]


def ask(
    port: int,
    method: str,
    path: str,
    body: object = None,
    *,
    key: str = "",
    timeout_s: float = 10.0,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Raises OSError or HTTPException where there is no whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        content = None if body is None else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"} | (headers or {})
        connection.request(method, path, body=content, headers=given)
        answer = connection.getresponse()
        return Answer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def read_proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def with_descendants(pids: set[int]) -> set[int]:
    parents = {pid: find_parent(pid) for pid in list_pids()}
    found = set(pids)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found - {os.getpid()}
        if not more:
            return found
        found |= more


def find_ports(count: int = 2) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        port = random.randint(LOWEST_PORT, HIGHEST_PORT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


def make_installed(data: Path, **variables: str) -> Installed:
    web, gateway = find_ports()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SLUICE_CACHE_DIR") if name in os.environ}
    ports = {"SLUICE_WEB_PORT": str(web), "SLUICE_GATEWAY_PORT": str(gateway)}
    return Installed(Layout(data), kept | ports | SECRETS | variables)


def remove(installed: Installed) -> None:
    """`down`, and whatever a failed test left of it is killed: no run may leave processes behind."""
    for pid in installed.list_processes():
        send(pid, signal.SIGCONT)
    installed.run("down")
    for pid in installed.list_processes():
        send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def send_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        send(pid, number)


def patience() -> float:
    """By how much this machine is busier than its cores allow: limits are those of a machine of our own."""
    return min(4.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def phases_in(status: dict[str, Any]) -> list[str]:
    """Of the replicas that are not of the past."""
    return [row["phase"] for row in status["replicas"] if row["phase"] != "stopped"]


def wait_until(condition: Callable[[], object], *, limit_s: float, what: str = "") -> float:
    """Polls; what cannot be asked yet counts as not true. Returns the seconds that it took."""
    started, last = time.monotonic(), "never true"
    while True:
        try:
            if condition():
                return time.monotonic() - started
        except (
            OSError,
            http.client.HTTPException,
            AssertionError,
            ValueError,
            StopIteration,
            psycopg.Error,
        ) as exc:
            last = repr(exc)[:600]
        if time.monotonic() - started > limit_s * patience():
            raise AssertionError(f"not within {limit_s:.0f} s (load {os.getloadavg()[0]:.1f}): {what} {last}")
        time.sleep(0.1)
