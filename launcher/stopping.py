"""Stops an installation in order from what is on record: used by the supervisor, and by `down` when that is
dead.

Needs neither PostgreSQL nor Valkey. A process is signalled only while pid and start time match its record."""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence

from launcher.engines import stop_engines
from launcher.identity import find_start_time, list_descendants, signal_if_same
from launcher.layout import Layout
from launcher.processes import ENGINES_STOP_AFTER, GATEWAY_GRACE_S, GRACE_S, STOP_ORDER
from launcher.record import ProcessRecord


def stop_installation(
    processes: Sequence[ProcessRecord],
    layout: Layout,
    *,
    say: Callable[[str], None],
    on_stopped: Callable[[str], None] = lambda name: None,
    hurry: threading.Event | None = None,
    keep_engines: bool = False,
) -> None:
    """Gateway, worker, engines, console, servers. Idempotent; `hurry` cuts every grace short."""
    by_name = {process.name: process for process in processes}
    for names in STOP_ORDER:
        _stop_together([by_name[name] for name in names if name in by_name], say=say, hurry=hurry)
        for name in names:
            on_stopped(name)
        if ENGINES_STOP_AFTER in names and not keep_engines:
            stop_engines(layout, say=say)
    if not keep_engines and layout.sockets != layout.data / "run":
        shutil.rmtree(layout.sockets, ignore_errors=True)


def _stop_together(
    processes: Sequence[ProcessRecord], *, say: Callable[[str], None], hurry: threading.Event | None
) -> None:
    alive = [process for process in processes if process.is_alive]
    for process in alive:
        first = signal.SIGINT if process.name == "postgres" else signal.SIGTERM
        signal_if_same(process.pid or 0, process.start_time, first)
    for process in alive:
        grace_s = GATEWAY_GRACE_S if process.name == "gateway" else GRACE_S
        _wait_or_kill(process, grace_s=grace_s, say=say, hurry=hurry)


def _kill(process: ProcessRecord) -> None:
    """Its whole session: what it started must not stay behind either. PostgreSQL's processes lead sessions of their
    own, and do not see their parent's end while they are stopped."""
    pid = process.pid or 0
    backends = list_descendants(pid) if process.name == "postgres" else []
    born = {backend: find_start_time(backend) for backend in backends}
    signal_if_same(pid, process.start_time, signal.SIGKILL, group=True)
    for backend, start_time in born.items():
        signal_if_same(backend, start_time, signal.SIGKILL)


def _wait_or_kill(
    process: ProcessRecord, *, grace_s: float, say: Callable[[str], None], hurry: threading.Event | None
) -> None:
    started, told = time.monotonic(), False
    while process.is_alive:
        waited_s = time.monotonic() - started
        if waited_s > grace_s or (hurry and hurry.is_set()):
            say(f"{process.name} did not stop within {waited_s:.0f} s and is killed")
            _kill(process)
            return
        if waited_s > 1.0 and not told:
            told = True
            say(f"waiting for {process.name} (up to {grace_s:.0f} s)")
        time.sleep(0.03)
