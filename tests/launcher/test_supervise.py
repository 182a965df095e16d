import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.layout import Layout
from launcher.record import ProcessRecord, read_record
from launcher.supervise import ProcessDied, Supervisor, describe_exit
from tests.launcher.fake_processes import CRASHER, STUBBORN, make_spec, run_supervisor, wait_until


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "var")


def find(supervisor: Supervisor, name: str) -> ProcessRecord | None:
    return next((record for record in supervisor.list_records() if record.name == name), None)


def find_pid(supervisor: Supervisor, name: str) -> int | None:
    record = find(supervisor, name)
    return record.pid if record and record.phase == "running" else None


def test_what_dies_is_started_again(layout: Layout) -> None:
    with run_supervisor(layout) as supervisor:
        supervisor.start(make_spec("web"))
        wait_until(lambda: find_pid(supervisor, "web") is not None)
        first = find_pid(supervisor, "web")
        assert first

        os.kill(first, signal.SIGKILL)

        wait_until(lambda: find_pid(supervisor, "web") not in (None, first))
        record = find(supervisor, "web")
        assert record
        assert record.restarts == 1


def test_a_newer_spec_replaces_what_runs_without_counting_a_crash(layout: Layout) -> None:
    with run_supervisor(layout) as supervisor:
        supervisor.start(make_spec("gateway"))
        supervisor.wait_running("gateway", timeout_s=10)
        first = find_pid(supervisor, "gateway")

        supervisor.start(replace(make_spec("gateway"), env={**os.environ, "NEWER_SPEC": "yes"}))
        wait_until(lambda: find_pid(supervisor, "gateway") not in (None, first))

        pid = find_pid(supervisor, "gateway")
        assert b"NEWER_SPEC=yes" in Path(f"/proc/{pid}/environ").read_bytes()
        record = find(supervisor, "gateway")
        assert record is not None
        assert record.restarts == 0


def test_what_a_process_makes_is_nobody_elses_whatever_the_callers_umask(layout: Layout) -> None:
    before = os.umask(0)
    try:
        with run_supervisor(layout) as supervisor:
            supervisor.start(make_spec("web"))
            supervisor.wait_running("web", timeout_s=10)
            pid = find_pid(supervisor, "web")
            status = Path(f"/proc/{pid}/status").read_text()
    finally:
        os.umask(before)

    assert "Umask:\t0077" in status


def test_the_record_on_disk_follows_the_processes(layout: Layout) -> None:
    with run_supervisor(layout) as supervisor:
        supervisor.start(make_spec("control"))
        supervisor.wait_running("control", timeout_s=10)

        wait_until(lambda: bool((record := read_record(layout.record)) and record.processes))

        record = read_record(layout.record)
        assert record
        assert record.processes[0].is_alive


def test_a_process_that_keeps_dying_ends_the_wait_with_its_log(layout: Layout) -> None:
    with run_supervisor(layout) as supervisor:
        supervisor.start(make_spec("web", CRASHER, is_ready=lambda: False))

        with pytest.raises(ProcessDied, match=r"(?s)status 7.*cannot go on"):
            supervisor.wait_running("web", timeout_s=10)


def test_the_delay_between_restarts_grows(layout: Layout) -> None:
    with run_supervisor(layout) as supervisor:
        supervisor.start(make_spec("web", CRASHER))

        wait_until(lambda: (record := find(supervisor, "web")) is not None and record.restarts >= 3)

        managed = supervisor._managed["web"]
        assert managed.delay_s >= 0.8


def test_a_process_counts_as_running_when_it_says_so(layout: Layout) -> None:
    ready = False
    with run_supervisor(layout) as supervisor:
        supervisor.start(make_spec("web", is_ready=lambda: ready))
        wait_until(lambda: (record := find(supervisor, "web")) is not None and record.pid is not None)
        record = find(supervisor, "web")
        assert record
        assert record.phase == "starting"

        ready = True
        supervisor.wait_running("web", timeout_s=10)


def test_a_program_that_is_not_there_is_told_and_tried_again(layout: Layout) -> None:
    with run_supervisor(layout) as supervisor:
        spec = make_spec("web", is_ready=lambda: False)
        absent = type(spec)(
            name="web", argv=("/nowhere/python",), env={}, is_ready=lambda: False, cwd=Path("/")
        )
        supervisor.start(absent)

        with pytest.raises(ProcessDied, match="web does not start"):
            supervisor.wait_running("web", timeout_s=10)


def test_stopping_ends_every_process_and_kills_the_stubborn(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.stopping.GRACE_S", 0.2)
    with run_supervisor(layout) as supervisor:
        for name, code in (("web", STUBBORN), ("gateway", ""), ("valkey", "")):
            supervisor.start(make_spec(name, code) if code else make_spec(name))
        wait_until(lambda: all(find_pid(supervisor, name) for name in ("web", "gateway", "valkey")))
        wait_until(lambda: "up" in (layout.logs / "web.log").read_text())
        records = supervisor.list_records()

    assert not any(record.is_alive for record in records)
    assert {record.phase for record in supervisor.list_records()} == {"stopped"}


def test_children_have_no_terminal_and_a_session_of_their_own(layout: Layout) -> None:
    with run_supervisor(layout) as supervisor:
        supervisor.start(make_spec("web"))
        supervisor.wait_running("web", timeout_s=10)
        pid = find_pid(supervisor, "web")
        assert pid

        wait_until(lambda: "up" in (layout.logs / "web.log").read_text())

        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")


def test_ends_are_described_in_words() -> None:
    assert describe_exit(3) == "it ended with status 3"
    assert describe_exit(-9) == "it was ended by SIGKILL"
    assert describe_exit(-64) == "it was ended by SIGRTMAX"
