"""`./sluice down`: asks the supervisor to stop; does its work when it is dead or does not."""

import argparse
import signal
import sys
import time

from launcher.engines import find_nodehosts
from launcher.identity import is_running, signal_if_same, wait_gone
from launcher.layout import Layout, find_layout
from launcher.locks import is_locked
from launcher.record import SupervisorRecord, read_record
from launcher.stopping import stop_installation

# Drain of the gateway, then the graces of the others: beyond it the supervisor hangs.
SUPERVISOR_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the data folder (default: SLUICE_DATA_DIR, else var/)")


def run(options: argparse.Namespace) -> int:
    layout = find_layout(options.data)
    record = read_record(layout.record)
    if record is None and not is_locked(layout.lock) and not find_nodehosts(layout):
        _say("Nothing runs here.")
    if record and record.is_alive:
        _ask_supervisor(record)
    # Whatever is still there: the supervisor was killed, or engines outlived an earlier run.
    record = read_record(layout.record) or record
    stop_installation(record.processes if record else (), layout, say=_say)
    _clean(layout)
    return 0


def _ask_supervisor(record: SupervisorRecord) -> None:
    _say("Stopping")
    signal_if_same(record.pid, record.start_time, signal.SIGTERM)
    deadline = time.monotonic() + SUPERVISOR_S
    while is_running(record.pid, record.start_time) and time.monotonic() < deadline:
        time.sleep(0.05)
    if signal_if_same(record.pid, record.start_time, signal.SIGKILL):
        _say("the supervisor does not stop and is killed")
        wait_gone(record.pid, record.start_time, timeout_s=5.0)


def _clean(layout: Layout) -> None:
    if not is_locked(layout.lock):
        layout.lock.unlink(missing_ok=True)
        layout.record.unlink(missing_ok=True)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
