"""The fork servers of a node host: one per equal plan, made when first needed, retired when idle.

A fork server does one job at a time. Whatever goes wrong with it, its engines are started directly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_DATAGRAM_BYTES = 192 * 1024
# Imports take 9 to 15 s on two cores, and up to a minute with cold disks.
IMPORT_LIMIT_S = 180.0
ANSWER_LIMIT_S = 20.0
# A server without engines keeps 250 to 400 MB; a crash or a scale-up within this time starts in seconds.
IDLE_LIMIT_S = 600.0
# A runtime whose server failed is started directly for this long.
BLOCKED_S = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    interpreter: str
    module: str
    platform: str
    env: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, content: dict[str, Any]) -> Plan:
        return cls(
            interpreter=str(content["interpreter"]),
            module=str(content["module"]),
            platform=str(content["platform"]),
            env=tuple(sorted((str(name), str(value)) for name, value in content["env"].items())),
        )


@dataclass(slots=True)
class Job:
    """`done(pid)` when forked; `failed(reason)` when the engine must be started directly."""

    message: dict[str, Any]
    log_fd: int
    lock_fd: int
    done: Callable[[int], None]
    failed: Callable[[str], None]


@dataclass(slots=True)
class ForkServer:
    plan: Plan
    pid: int
    peer: socket.socket
    since: float
    deadline: float
    ready: bool = False
    import_s: float | None = None
    missing: tuple[str, ...] = ()
    used_at: float = 0.0
    waiting: deque[Job] = field(default_factory=deque)
    running: Job | None = None


class ForkServers:
    """Owned by the node host's loop, which tells it when a socket is readable, a pid ended, time passed."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._servers: dict[Plan, ForkServer] = {}
        self._blocked: dict[Plan, float] = {}

    def submit(self, plan: Plan, job: Job, *, now: float) -> None:
        if self._blocked.get(plan, 0.0) > now:
            job.failed("the runtime's fork server failed a short while ago")
            return
        server = self._servers.get(plan)
        if server is None:
            try:
                server = self._start(plan, now)
            except OSError as exc:
                job.failed(f"no fork server: {exc}")
                return
        server.waiting.append(job)
        server.used_at = now
        self._feed(server, now)

    def sockets(self) -> list[socket.socket]:
        return [server.peer for server in self._servers.values()]

    def pids(self) -> dict[int, ForkServer]:
        return {server.pid: server for server in self._servers.values()}

    def on_readable(self, peer: socket.socket, *, now: float) -> None:
        server = next((one for one in self._servers.values() if one.peer is peer), None)
        if server is None:
            return
        try:
            content = peer.recv(MAX_DATAGRAM_BYTES)
            message = json.loads(content) if content else None
        except (OSError, ValueError):
            message = None
        if message is None:
            self._drop(server, "the fork server ended", now=now, block=True)
        elif message.get("ready"):
            self._on_ready(server, message, now)
        else:
            self._on_answer(server, message, now)

    def on_exit(self, pid: int, *, now: float) -> bool:
        server = self.pids().get(pid)
        if server is not None:
            self._drop(server, "the fork server ended", now=now, block=True)
        return server is not None

    def on_time(self, *, now: float, used: set[Plan]) -> None:
        """`used`: the plans of engines that run; their servers stay."""
        for server in list(self._servers.values()):
            busy = server.running is not None or not server.ready
            if busy and now > server.deadline:
                self._drop(server, "the fork server did not answer in time", now=now, block=True)
            elif not busy and server.plan not in used and now - server.used_at > IDLE_LIMIT_S:
                self._drop(server, "idle", now=now, block=False)

    def close(self) -> None:
        for server in list(self._servers.values()):
            self._drop(server, "the node host ends", now=0.0, block=False)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "pid": server.pid,
                "interpreter": server.plan.interpreter,
                "ready": server.ready,
                "import_s": server.import_s,
                "missing": list(server.missing),
                "since": server.since,
            }
            for server in self._servers.values()
        ]

    def _start(self, plan: Plan, now: float) -> ForkServer:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        argv = [plan.interpreter, "-P", "-m", "sluice_engine.forkserver", "--fd", str(theirs.fileno())]
        argv += ["--module", plan.module, "--platform", plan.platform]
        try:
            process = subprocess.Popen(
                argv,
                env=dict(plan.env),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(log)
        # The loop reaps every child itself; Popen must not warn about one that it has lost.
        process.returncode = 0
        deadline = now + IMPORT_LIMIT_S
        server = ForkServer(plan, process.pid, ours, since=time.time(), deadline=deadline, used_at=now)
        self._servers[plan] = server
        return server

    def _on_ready(self, server: ForkServer, message: dict[str, Any], now: float) -> None:
        server.import_s = message.get("import_s")
        server.missing = tuple(message.get("missing", ()))
        if message.get("threads") != 1 or message.get("cuda") or message.get("tracker"):
            self._drop(server, f"not sound to fork: {message}", now=now, block=True)
            return
        server.ready = True
        self._feed(server, now)

    def _on_answer(self, server: ForkServer, message: dict[str, Any], now: float) -> None:
        job, server.running = server.running, None
        if job is not None:
            if isinstance(message.get("pid"), int):
                job.done(message["pid"])
            else:
                job.failed(str(message.get("error", "no answer")))
        self._feed(server, now)

    def _feed(self, server: ForkServer, now: float) -> None:
        if not server.ready or server.running is not None or not server.waiting:
            return
        job = server.waiting.popleft()
        server.running = job
        server.used_at = now
        server.deadline = now + ANSWER_LIMIT_S
        try:
            socket.send_fds(server.peer, [json.dumps(job.message).encode()], [job.log_fd, job.lock_fd])
        except OSError as exc:
            self._drop(server, f"the fork server took no job: {exc}", now=now, block=True)

    def _drop(self, server: ForkServer, reason: str, *, now: float, block: bool) -> None:
        self._servers.pop(server.plan, None)
        if block:
            self._blocked[server.plan] = now + BLOCKED_S
        server.peer.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
        jobs = [server.running, *server.waiting]
        server.running = None
        server.waiting.clear()
        for job in jobs:
            if job is not None:
                job.failed(reason)
