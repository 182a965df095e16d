"""Ends the engines of an installation: through the node host that keeps them, or from their records when it
is dead.

The records are the node host's (`<data>/engines/<replica>.<generation>/`); they are only read here."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.identity import (
    find_session,
    find_start_time,
    is_running,
    list_pids,
    signal_if_same,
    stop_process,
    wait_gone,
)
from launcher.layout import Layout
from launcher.locks import is_locked

SOCKET_NAME = "nodehost.sock"
ANSWER_S = 3.0
ENGINE_GRACE_S = 5.0
# The engines' grace, their teardown, and the node host's own.
NODEHOST_GRACE_S = 20.0


@dataclass(frozen=True)
class EngineRecord:
    """An engine leads a session of its own, and whatever lives of it holds the lock in its folder."""

    folder: Path
    pid: int
    start_time: int

    def list_members(self) -> list[int]:
        """Every process of its session; none when the pid belongs to somebody else by now."""
        if not is_running(self.pid, self.start_time) and not is_locked(self.folder / "lock"):
            return []
        return [pid for pid in list_pids() if find_session(pid) == self.pid]


def stop_engines(layout: Layout, *, say: Callable[[str], None] = lambda text: None) -> None:
    """Idempotent. The node host goes first, so that nothing is started meanwhile."""
    for pid in find_nodehosts(layout):
        start_time = find_start_time(pid)
        if _ask_shutdown(layout.sockets / SOCKET_NAME):
            say("stopping the engines")
            wait_gone(pid, start_time, timeout_s=NODEHOST_GRACE_S)
        stop_process(pid, start_time, grace_s=1.0)
    _end_sessions(list_engines(layout), say=say)
    (layout.sockets / SOCKET_NAME).unlink(missing_ok=True)
    (layout.engines / "nodehost.lock").unlink(missing_ok=True)


def find_nodehosts(layout: Layout) -> list[int]:
    """By command line: what keeps engines belongs to no supervisor, and its own record may be lost."""
    folder = os.fsencode(layout.engines)
    found = []
    for pid in list_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"workers.nodehost" in words and folder in words:
            found.append(pid)
    return found


def list_engines(layout: Layout) -> list[EngineRecord]:
    """Of this boot, and readable: a record that a crash cut short names nothing."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    found = []
    for path in layout.engines.glob("*/record.json"):
        try:
            fields = json.loads(path.read_text())
            if fields["boot_id"] == boot_id and fields["pid"]:
                found.append(EngineRecord(path.parent, int(fields["pid"]), int(fields["started_ticks"])))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def _end_sessions(engines: list[EngineRecord], *, say: Callable[[str], None]) -> None:
    remaining = [(engine, members) for engine in engines if (members := engine.list_members())]
    if not remaining:
        return
    say(f"stopping {len(remaining)} engine(s) without their keeper")
    led = [engine for engine, _ in remaining if signal_if_same(engine.pid, engine.start_time, signal.SIGTERM)]
    deadline = time.monotonic() + ENGINE_GRACE_S
    while time.monotonic() < deadline and any(engine.list_members() for engine in led):
        time.sleep(0.1)
    # What has no leader any more understands no SIGTERM.
    for engine, _ in remaining:
        for pid in engine.list_members():
            stop_process(pid, find_start_time(pid), grace_s=0.0, first=signal.SIGKILL)


def _ask_shutdown(path: Path) -> bool:
    """True when the node host has understood that it ends with its engines."""
    request = {"op": "shutdown", "stop_engines": True, "grace_s": ENGINE_GRACE_S}
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(ANSWER_S)
            client.connect(str(path))
            client.sendall(json.dumps(request).encode() + b"\n")
            return bool(json.loads(client.makefile().readline()).get("ending"))
    except (OSError, ValueError, AttributeError):
        return False
