"""Tiny stand-ins for supervised processes, and a supervisor that runs in a thread."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.installation import Installation
from launcher.layout import Layout
from launcher.processes import ProcessSpec
from launcher.record import SupervisorRecord
from launcher.stopping import stop_installation
from launcher.supervise import Supervisor

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
CRASHER = "import sys; print('cannot go on', flush=True); sys.exit(7)"


def make_spec(name: str, code: str = SLEEPER, *, is_ready: Callable[[], bool] | None = None) -> ProcessSpec:
    argv = (sys.executable, "-I", "-c", code)
    return ProcessSpec(name=name, argv=argv, env={"PATH": "/usr/bin:/bin"}, is_ready=is_ready, cwd=Path("/"))


def make_installation(layout: Layout) -> Installation:
    return Installation(
        layout=layout,
        bind="127.0.0.1",
        web_port=18990,
        gateway_port=18991,
        engine="sim",
        has_demo=False,
        node="here",
        database_url=None,
        redis_url=None,
    )


@contextmanager
def run_supervisor(layout: Layout) -> Iterator[Supervisor]:
    """In a thread that outlives its processes; they are stopped on the way out."""
    layout.create()
    supervisors: list[Supervisor] = []

    def describe() -> SupervisorRecord:
        processes = supervisors[0].list_records()
        return SupervisorRecord(1, 1, "", "", "", "sim", "setting_up", "", processes)

    supervisors.append(Supervisor(layout, describe=describe))
    supervisor = supervisors[0]
    thread = threading.Thread(target=lambda: _run_and_stop(supervisor, layout))
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.ask_stop()
        thread.join()


def _run_and_stop(supervisor: Supervisor, layout: Layout) -> None:
    supervisor.run(as_subreaper=False)
    stop_installation(
        supervisor.list_records(), layout, say=lambda text: None, on_stopped=supervisor.note_stopped
    )


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.02)
