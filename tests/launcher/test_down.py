"""`down` when the supervisor cannot do it: what is on record is ended, what is not ours is left alone."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.commands import down, status
from launcher.identity import find_start_time, is_running
from launcher.layout import ROOT, Layout
from launcher.locks import is_locked
from launcher.record import ProcessRecord, SupervisorRecord, read_record, write_record
from tests.launcher.fake_processes import SLEEPER, wait_until

SUPERVISOR = """
import os, sys, threading
from pathlib import Path
from launcher.layout import Layout
from launcher.locks import FileLock
from launcher.identity import find_start_time
from launcher.record import SupervisorRecord
from launcher.supervise import Supervisor
from tests.launcher.fake_processes import make_spec

layout = Layout(Path(sys.argv[1]))
layout.create()
assert FileLock(layout.lock).try_acquire()
me = os.getpid()
describe = lambda: SupervisorRecord(
    me, find_start_time(me), "", "http://127.0.0.1:1", "", "sim", "ready", "", supervisor.list_records()
)
supervisor = Supervisor(layout, describe=describe)
supervisor.start(make_spec("web"))
supervisor.start(make_spec("valkey"))
supervisor.run()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "var")


def start_sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", SLEEPER], stdout=subprocess.DEVNULL, start_new_session=True
    )


def start_supervisor(layout: Layout) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(layout.data)], cwd=ROOT)
    wait_until(lambda: bool((found := read_record(layout.record)) and len(found.processes) == 2))
    return process


def run_down(layout: Layout) -> int:
    return down.run(argparse.Namespace(data=str(layout.data)))


def test_kill_9_of_the_supervisor_takes_its_processes_along(layout: Layout) -> None:
    supervisor = start_supervisor(layout)
    record = read_record(layout.record)
    assert record

    supervisor.kill()
    supervisor.wait()

    wait_until(lambda: not any(process.is_alive for process in record.processes))
    assert not is_locked(layout.lock)
    assert run_down(layout) == 0
    assert not layout.lock.exists()
    assert not layout.record.exists()


def test_down_asks_the_supervisor_and_waits_for_it(layout: Layout) -> None:
    supervisor = start_supervisor(layout)
    record = read_record(layout.record)

    assert run_down(layout) == 0

    assert supervisor.wait(5) == -signal.SIGTERM
    assert record
    assert not any(process.is_alive for process in record.processes)


def test_processes_on_record_are_ended_when_the_supervisor_is_dead(layout: Layout) -> None:
    layout.create()
    with start_sleeper() as orphan:
        entry = ProcessRecord("web", orphan.pid, find_start_time(orphan.pid), "running", "")
        write_record(layout.record, SupervisorRecord(2**22 - 1, 1, "", "", "", "sim", "ready", "", (entry,)))

        run_down(layout)

        assert orphan.wait(5) == -signal.SIGTERM


def test_a_pid_that_was_used_again_is_left_alone(layout: Layout) -> None:
    layout.create()
    with start_sleeper() as stranger:
        entry = ProcessRecord("web", stranger.pid, 1, "running", "")
        write_record(layout.record, SupervisorRecord(2**22 - 1, 1, "", "", "", "sim", "ready", "", (entry,)))
        write_engine(layout, "r1.1", pid=stranger.pid, started_ticks=1)

        run_down(layout)

        assert stranger.poll() is None
        stranger.kill()


def test_engines_are_ended_from_their_records_when_their_keeper_is_dead(layout: Layout) -> None:
    layout.create()
    with start_sleeper() as engine:
        write_engine(layout, "r1.1", pid=engine.pid, started_ticks=find_start_time(engine.pid))

        run_down(layout)

        assert engine.wait(5) == -signal.SIGTERM


def test_what_an_engine_leaves_in_its_session_is_ended_too(layout: Layout) -> None:
    layout.create()
    folder = layout.engines / "r1.1"
    folder.mkdir()
    code = (
        "import fcntl, os, time\n"
        f"fd = os.open({str(folder / 'lock')!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "pid = os.fork()\n"
        "print(pid, flush=True) if pid else time.sleep(600)\n"
        "os._exit(0)\n"
    )
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout
    member = int(leader.stdout.readline())
    leader.stdout.close()
    leader.wait()
    started = find_start_time(member)
    write_engine(layout, "r1.1", pid=leader.pid, started_ticks=1)

    run_down(layout)

    assert not is_running(member, started)


def test_nothing_to_stop_is_no_error(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_down(layout) == 0

    assert "Nothing runs here" in capsys.readouterr().out


def test_status_tells_of_a_dead_supervisor(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    layout.create()
    with start_sleeper() as orphan:
        entry = ProcessRecord(
            "web", orphan.pid, find_start_time(orphan.pid), "running", "2026-01-01T00:00:00Z"
        )
        write_record(
            layout.record, SupervisorRecord(2**22 - 1, 1, "", "u", "g", "sim", "ready", "", (entry,))
        )

        code = status.run(argparse.Namespace(data=str(layout.data), json=True))

        orphan.kill()
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["ready"] is False
    assert found["processes"] == [
        {"name": "web", "pid": orphan.pid, "phase": "running", "since": "2026-01-01T00:00:00Z"}
    ]


def test_status_of_an_empty_folder_says_so(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.run(argparse.Namespace(data=str(layout.data), json=False)) == status.NOT_RUNNING

    assert "Nothing runs" in capsys.readouterr().out


def write_engine(layout: Layout, name: str, *, pid: int, started_ticks: int | None) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (layout.engines / name).mkdir(exist_ok=True)
    fields = {"pid": pid, "started_ticks": started_ticks, "boot_id": boot_id, "created_at": time.time()}
    (layout.engines / name / "record.json").write_text(json.dumps(fields))
    assert os.path.exists(layout.engines / name)
