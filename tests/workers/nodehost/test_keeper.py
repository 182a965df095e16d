"""Engines are spawned once, adopted, reaped and stopped, whatever happens to the processes around them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pool.ports import Command
from tests.workers.conftest import Bench
from workers.hosts import HostRefused, HostUnreachable, NodeHost, kill_node_host
from workers.nodehost.proc import find_process, is_same_process


def is_gone(pid: int) -> bool:
    found = find_process(pid)
    return found is None or not found.alive


def wait_gone(pid: int, limit_s: float = 5.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"{pid} still lives"
        time.sleep(0.01)


def test_an_engine_leads_a_session_of_its_own(bench: Bench) -> None:
    engine = bench.spawn()

    assert engine.pid is not None
    found = find_process(engine.pid)
    assert found is not None
    assert (found.session, found.group) == (engine.pid, engine.pid)
    assert found.started_ticks == engine.started_ticks


def test_fc_12_a_second_spawn_of_the_same_generation_returns_the_same_process(bench: Bench) -> None:
    with ThreadPoolExecutor(8) as pool:
        engines = list(pool.map(lambda _: bench.spawn(), range(16)))

    assert len({engine.pid for engine in engines}) == 1
    assert len(bench.host.list_engines()) == 1


def test_fc_12_an_ended_generation_is_not_started_again(bench: Bench) -> None:
    bench.spawn("r1", "--exit", "3")
    ended = bench.wait(lambda engine: not engine.running)

    again = bench.spawn("r1")

    assert again == ended
    assert again.exit_code == 3


def test_fc_23_the_next_node_host_adopts_what_a_killed_one_left(bench: Bench) -> None:
    engine = bench.spawn()
    first = bench.host.read_status()["pid"]

    kill_node_host(bench.engines)
    wait_gone(first)
    bench.ensure()

    adopted = bench.find()
    assert adopted.running
    assert (adopted.pid, adopted.started_ticks) == (engine.pid, engine.started_ticks)
    assert bench.spawn().pid == engine.pid


def test_fc_23_the_end_of_an_adopted_engine_is_noticed(bench: Bench) -> None:
    engine = bench.spawn("r1", "--child")
    kill_node_host(bench.engines)
    bench.ensure()

    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)

    ended = bench.wait(lambda one: not one.running)
    assert ended.exit_code is None
    assert ended.ended_at is not None


def test_fc_23_an_engine_that_ended_without_a_node_host_is_closed_at_adoption(bench: Bench) -> None:
    engine = bench.spawn("r1", "--child")
    child = bench.wait(lambda one: len(one.members) == 2).members[1]
    kill_node_host(bench.engines)

    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    wait_gone(engine.pid)
    bench.ensure()

    assert not bench.find().running
    wait_gone(child)


def test_a_pid_that_was_given_away_is_not_adopted(bench: Bench) -> None:
    bench.spawn()
    kill_node_host(bench.engines)
    path = bench.engines / "r1.1" / "record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "started_ticks": record["started_ticks"] + 1}))

    bench.ensure()

    assert not bench.find().running
    assert not is_gone(record["pid"])
    os.kill(record["pid"], signal.SIGKILL)


def test_a_record_of_an_earlier_boot_is_over(bench: Bench) -> None:
    engine = bench.spawn()
    kill_node_host(bench.engines)
    path = bench.engines / "r1.1" / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))

    bench.ensure()

    assert not bench.find().running
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)


def test_a_record_cut_short_hinders_nothing(bench: Bench) -> None:
    bench.spawn()
    folder = bench.engines / "r2.1"
    folder.mkdir()
    (folder / "record.json").write_text('{"replica_id": "r2", "gen')
    kill_node_host(bench.engines)

    bench.ensure()

    assert [engine.replica_id for engine in bench.host.list_engines()] == ["r1"]


def test_fc_03_children_of_a_killed_leader_do_not_survive(bench: Bench) -> None:
    engine = bench.spawn("r1", "--child")
    members = bench.wait(lambda one: len(one.members) == 2).members

    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)

    ended = bench.wait(lambda one: not one.running)
    assert ended.signal == signal.SIGKILL
    for pid in members:
        wait_gone(pid)


def test_fc_49_a_hundred_cycles_leave_no_zombie(bench: Bench) -> None:
    command = Command(argv=("/bin/true",), env={}, cwd="/")
    for number in range(100):
        bench.host.spawn(bench.make_spec(f"r{number}"), command=command)

    for number in range(100):
        bench.wait(lambda engine: not engine.running, f"r{number}", limit_s=60)
    keeper = bench.host.read_status()["pid"]
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    assert children == []


def test_sigterm_ends_the_node_host_and_leaves_the_engines(bench: Bench) -> None:
    engine = bench.spawn()
    keeper = bench.host.read_status()["pid"]

    os.kill(keeper, signal.SIGTERM)
    wait_gone(keeper)

    assert engine.pid is not None
    assert engine.started_ticks is not None
    assert is_same_process(engine.pid, started_ticks=engine.started_ticks)
    bench.ensure()
    assert bench.find().running


def test_stop_gives_the_leader_time_and_then_kills_the_session(bench: Bench) -> None:
    bench.spawn("r1", "--child", "--ignore-term")
    members = bench.wait(lambda one: len(one.members) == 2).members
    time.sleep(0.2)

    assert bench.host.stop("r1", generation=1, grace_s=0.3)

    ended = bench.wait(lambda one: not one.running)
    assert ended.signal == signal.SIGKILL
    for pid in members:
        wait_gone(pid)


def test_stop_is_seen_through_without_its_caller_and_repeats_as_false(bench: Bench) -> None:
    bench.spawn()

    assert bench.host.stop("r1", generation=1)

    assert bench.wait(lambda one: not one.running).signal == signal.SIGTERM
    assert not bench.host.stop("r1", generation=1)
    assert not bench.host.stop("nobody", generation=1)


def test_the_socket_of_an_ended_engine_is_removed(bench: Bench) -> None:
    bench.spawn()
    path = bench.folder / "r1.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    bench.host.stop("r1", generation=1, grace_s=0)
    bench.wait(lambda one: not one.running)

    assert not path.exists()


def test_forget_drops_ended_engines_only(bench: Bench) -> None:
    bench.spawn()
    assert not bench.host.forget("r1", generation=1)
    bench.host.stop("r1", generation=1, grace_s=0)
    bench.wait(lambda one: not one.running)

    assert bench.host.forget("r1", generation=1)

    assert bench.host.find_engine("r1", generation=1) is None
    assert not (bench.engines / "r1.1").exists()


def test_fc_20_the_key_is_in_no_file_and_no_command_line(bench: Bench) -> None:
    engine = bench.spawn()

    for path in bench.folder.rglob("*"):
        if path.is_file():
            assert b"key-that-must-not-leak" not in path.read_bytes(), path
    for pid in (engine.pid, bench.host.read_status()["pid"]):
        assert b"key-that-must-not-leak" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    keeper = bench.host.read_status()["pid"]
    assert b"key-that-must-not-leak" not in Path(f"/proc/{keeper}/environ").read_bytes()


def test_fc_51_a_replica_id_cannot_leave_the_folder(bench: Bench) -> None:
    for name in ("../r1", "a/b", "", "a" * 65, "r\0"):
        with pytest.raises((HostRefused, ValueError, OSError)):
            bench.spawn(name)

    assert bench.host.list_engines() == ()


def test_an_interpreter_that_is_not_there_is_a_missing_runtime(bench: Bench) -> None:
    command = Command(argv=("/nowhere/python", "-m", "x"), env={}, cwd="/")

    with pytest.raises(HostRefused) as caught:
        bench.host.spawn(bench.make_spec(), command=command)

    assert caught.value.details["reason"] == "missing_runtime"
    assert not bench.find().running


def test_a_second_node_host_of_the_folder_does_not_start(bench: Bench) -> None:
    first = bench.host.read_status()["pid"]

    again = bench.ensure()

    assert again.read_status()["pid"] == first


def test_a_bad_request_does_not_end_the_keeper(bench: Bench) -> None:
    with pytest.raises(HostRefused):
        bench.host._call("nonsense")
    with pytest.raises(HostRefused):
        bench.host._call("stop", replica_id="r1", generation="x")

    assert bench.host.read_status()["engines"] == 0


def test_nobody_listening_is_an_error_with_a_way_out() -> None:
    with pytest.raises(HostUnreachable, match="worker starts it again"):
        NodeHost("/nowhere/nodehost.sock").read_status()
