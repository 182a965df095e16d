"""Keeps named processes running: starts them, restarts what dies with a growing delay, reaps, rotates logs,
stops in order.

Only the thread that calls `run` starts processes: they die with the thread that started them."""

import ctypes
import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from launcher.children import spawn
from launcher.errors import LauncherError
from launcher.identity import find_children, find_start_time, is_zombie
from launcher.layout import Layout
from launcher.processes import ProcessSpec
from launcher.record import ProcessRecord, SupervisorRecord, format_now, write_record
from launcher.rotation import rotate_logs
from launcher.servers import read_tail

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
FIRST_DELAY_S = 0.2
LAST_DELAY_S = 30.0
STABLE_AFTER_S = 60.0
# A process that cannot say when it is up has survived its imports by then.
STEADY_S = 1.5
BUSY_TICK_S = 0.05
IDLE_TICK_S = 1.0
HOUSEKEEPING_EVERY_S = 5.0
# How long the kernel may take to end a process after SIGKILL.
KILLED_S = 5.0


class ProcessDied(LauncherError):
    """A process that the start needs does not come up; the message holds its last log lines."""

    code: ClassVar[str] = "process_died"


@dataclass
class Managed:
    """A process under supervision. Touched by the supervising thread; others only read."""

    spec: ProcessSpec
    process: subprocess.Popen[bytes] | None = None
    phase: str = "starting"
    since: str = field(default_factory=format_now)
    started_at: float = 0.0
    retry_at: float = 0.0
    delay_s: float = FIRST_DELAY_S
    restarts: int = 0
    reason: str = ""
    is_leaving: bool = False
    """It was asked to end, and comes back at once by its newest spec."""

    def enter(self, phase: str, reason: str = "") -> None:
        self.phase, self.reason, self.since = phase, reason, format_now()


class Supervisor:
    """`start` and `wait_running` may be called from any thread, `run` from one only, until `ask_stop`."""

    def __init__(self, layout: Layout, *, describe: Callable[[], SupervisorRecord]) -> None:
        self._layout = layout
        self._describe = describe
        self._managed: dict[str, Managed] = {}
        self._asked: queue.SimpleQueue[ProcessSpec] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._dirty = True
        self._zombies: set[int] = set()
        self._housekeeping_at = 0.0
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def ask_stop(self) -> None:
        self._stop.set()
        self.wake()

    def wake(self) -> None:
        """Also refreshes the record: call it when what `describe` tells has changed."""
        self._dirty = True
        with suppress(BlockingIOError):
            os.write(self._waker, b"!")

    def catch_signals(self) -> None:
        """SIGINT and SIGTERM ask for the stop; a child's death wakes the loop. Main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def start(self, spec: ProcessSpec) -> None:
        """One of this name that runs already ends in its own time, and the next is as `spec` says."""
        self._asked.put(spec)
        self.wake()

    def wait_running(self, name: str, *, timeout_s: float, patience: int = 3) -> None:
        """Raises ProcessDied when it has died `patience` times, does not come up in time, or all is being
        stopped."""
        deadline = time.monotonic() + timeout_s
        while not self._stop.wait(BUSY_TICK_S):
            managed = self._managed.get(name)
            if managed and managed.phase == "running" and self._asked.empty():
                return
            died = managed is not None and managed.restarts >= patience
            if died or time.monotonic() > deadline:
                why = (
                    managed.reason if managed and managed.reason else f"it is not up after {timeout_s:.0f} s"
                )
                tail = read_tail(self._log(name))
                raise ProcessDied(f"{name} does not start: {why}. Its log ends with:\n{tail}", process=name)
        raise ProcessDied("The start was interrupted.", process=name)

    def run(self, *, as_subreaper: bool = True) -> None:
        """Supervises until asked to stop. The caller then stops the processes in order."""
        if as_subreaper:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        while not self._stop.is_set():
            self._take_new()
            for managed in self._managed.values():
                self._tend(managed)
            self._keep_house()
            self.write_record()
            self._sleep()

    def list_records(self) -> tuple[ProcessRecord, ...]:
        return tuple(_record(managed) for managed in list(self._managed.values()))

    def note_stopped(self, name: str) -> None:
        managed = self._managed.get(name)
        if managed:
            if managed.process:
                with suppress(subprocess.TimeoutExpired):
                    managed.process.wait(KILLED_S)
            managed.enter("stopped")
            self._dirty = True

    def write_record(self) -> None:
        if self._dirty:
            self._dirty = False
            write_record(self._layout.record, self._describe())

    def reap(self, *, patience: bool = True) -> None:
        """Takes the exit status of processes that were handed to us. A zombie must be seen twice: threads
        of ours
        wait for children of their own, and theirs are not to be taken away."""
        seen = {pid for pid in find_children(os.getpid()) if is_zombie(pid)}
        for pid in seen & self._zombies if patience else seen:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
        self._zombies = seen

    def _take_new(self) -> None:
        while True:
            try:
                spec = self._asked.get_nowait()
            except queue.Empty:
                return
            known = self._managed.get(spec.name)
            if known is None or known.process is None:
                self._managed[spec.name] = managed = Managed(spec)
                self._spawn(managed)
            else:
                known.spec, known.is_leaving = spec, True
                known.process.send_signal(spec.stop_signal)
                known.enter("leaving")
                self._dirty = True

    def _spawn(self, managed: Managed) -> None:
        spec = managed.spec
        try:
            managed.process = spawn(
                spec.argv,
                env=spec.env,
                log=self._log(spec.name),
                cwd=spec.cwd,
                death_signal=spec.stop_signal,
                identity=spec.identity,
            )
        except OSError as error:
            self._back_off(managed, f"it cannot be executed: {error.strerror}")
            return
        managed.started_at = time.monotonic()
        managed.enter("starting", managed.reason)
        self._dirty = True

    def _tend(self, managed: Managed) -> None:
        if managed.process is None:
            if time.monotonic() >= managed.retry_at:
                self._spawn(managed)
            return
        code = managed.process.poll()
        if code is not None:
            managed.process = None
            if managed.is_leaving:
                managed.is_leaving = False
                self._spawn(managed)
            else:
                self._back_off(managed, describe_exit(code))
        elif managed.phase == "starting" and _is_up(managed):
            managed.enter("running")
            self._dirty = True

    def _back_off(self, managed: Managed, reason: str) -> None:
        if managed.started_at and time.monotonic() - managed.started_at >= STABLE_AFTER_S:
            managed.delay_s = FIRST_DELAY_S
        managed.retry_at = time.monotonic() + managed.delay_s
        managed.delay_s = min(managed.delay_s * 2, LAST_DELAY_S)
        managed.restarts += 1
        managed.enter("backing_off", reason)
        self._dirty = True

    def _keep_house(self) -> None:
        if time.monotonic() < self._housekeeping_at:
            return
        self._housekeeping_at = time.monotonic() + HOUSEKEEPING_EVERY_S
        self.reap()
        try:
            rotate_logs(self._layout.logs)
        except OSError:
            return  # a full disk must not end the supervision; the next round tries again

    def _sleep(self) -> None:
        busy = any(managed.phase in ("starting", "backing_off") for managed in self._managed.values())
        select.select([self._woken], [], [], BUSY_TICK_S if busy else IDLE_TICK_S)
        try:
            while os.read(self._woken, 512):
                pass
        except BlockingIOError:
            return

    def _log(self, name: str) -> Path:
        return self._layout.logs / f"{name}.log"


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"it ended with status {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def _is_up(managed: Managed) -> bool:
    if managed.spec.is_ready:
        return managed.spec.is_ready()
    return time.monotonic() - managed.started_at >= STEADY_S


def _record(managed: Managed) -> ProcessRecord:
    pid = managed.process.pid if managed.process else None
    return ProcessRecord(
        name=managed.spec.name,
        pid=pid,
        start_time=find_start_time(pid) if pid else None,
        phase=managed.phase,
        since=managed.since,
        restarts=managed.restarts,
        reason=managed.reason,
    )
