"""Engines forked from a pre-imported parent: sound, adopted by the node host, and started directly where not."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pool.ports import Command, EngineProcess, ForkPlan
from tests.workers.conftest import ENV, REPOSITORY, STUB, Bench
from tests.workers.nodehost.test_keeper import is_gone, wait_gone
from workers.hosts import kill_node_host
from workers.nodehost.proc import find_process


def has_pid(engine: EngineProcess) -> bool:
    return engine.pid is not None


def spawn_with(bench: Bench, plan: ForkPlan, replica_id: str = "r1") -> EngineProcess:
    command = Command(argv=(sys.executable, "-m", STUB), env=ENV, cwd=str(REPOSITORY), fork=plan)
    return bench.host.spawn(bench.make_spec(replica_id), command=command)


def test_spawn_returns_before_the_imports_are_done(bench: Bench) -> None:
    engine = bench.spawn(forked=True)

    assert engine.running
    assert engine.pid is None
    assert bench.wait(has_pid).forked


def test_a_forked_engine_is_a_child_of_the_node_host_in_its_own_session(bench: Bench) -> None:
    bench.spawn(forked=True)

    engine = bench.wait(has_pid)

    assert engine.pid is not None
    found = find_process(engine.pid)
    assert found is not None
    assert found.parent == bench.host.read_status()["pid"]
    assert found.session == engine.pid


def test_engines_of_one_plan_share_a_fork_server(bench: Bench) -> None:
    for number in range(3):
        bench.spawn(f"r{number}", forked=True)
    for number in range(3):
        bench.wait(has_pid, f"r{number}")

    assert len(bench.host.read_status()["fork_servers"]) == 1


def test_exit_code_and_signal_of_a_forked_engine_are_kept(bench: Bench) -> None:
    bench.spawn("r1", "--exit", "7", forked=True)
    bench.spawn("r2", forked=True)

    assert bench.wait(lambda engine: not engine.running, "r1").exit_code == 7
    engine = bench.wait(has_pid, "r2")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGTERM)
    assert bench.wait(lambda one: not one.running, "r2").signal == signal.SIGTERM


def test_a_forked_engine_keeps_only_its_own_descriptors(bench: Bench) -> None:
    bench.spawn("r1", forked=True)
    bench.wait(has_pid, "r1")
    bench.spawn("r2", forked=True)
    engine = bench.wait(has_pid, "r2")
    bench.wait(lambda one: "stub engine" in Path(one.log_path).read_text(), "r2")

    folder = Path(f"/proc/{engine.pid}/fd")
    targets = {os.readlink(path) for path in folder.iterdir()}

    allowed = {"/dev/null", f"{bench.engines}/r2.1/engine.log", f"{bench.engines}/r2.1/lock"}
    assert targets == allowed


def test_a_forked_engine_has_a_clean_signal_state_and_no_secret_in_its_first_environment(
    bench: Bench,
) -> None:
    bench.spawn(forked=True)
    engine = bench.wait(has_pid)
    bench.wait(lambda one: "stub engine" in Path(one.log_path).read_text())

    status = Path(f"/proc/{engine.pid}/status").read_text()

    assert "SigBlk:\t0000000000000000" in status
    assert b"key-that-must-not-leak" not in Path(f"/proc/{engine.pid}/environ").read_bytes()


def test_the_fork_server_dies_with_the_node_host_and_its_engines_do_not(bench: Bench) -> None:
    bench.spawn(forked=True)
    engine = bench.wait(has_pid)
    server = bench.host.read_status()["fork_servers"][0]["pid"]

    kill_node_host(bench.engines)

    wait_gone(server)
    assert engine.pid is not None
    assert not is_gone(engine.pid)
    bench.ensure()
    assert bench.find().pid == engine.pid


def test_a_node_host_killed_while_the_server_imports_leaves_an_engine_that_can_be_started(
    bench: Bench,
) -> None:
    bench.spawn(forked=True)
    kill_node_host(bench.engines)
    bench.ensure()

    assert not bench.find().running
    assert bench.spawn().pid is not None


def test_a_runtime_without_the_plug_in_starts_directly(bench: Bench) -> None:
    plan = ForkPlan(sys.executable, STUB, "none", {"PATH": "/usr/bin:/bin"})

    spawn_with(bench, plan)

    engine = bench.wait(has_pid)
    assert engine.running
    assert not engine.forked
    assert "started directly" in Path(engine.log_path).read_text()


def test_a_killed_fork_server_does_not_block_the_next_engine(bench: Bench) -> None:
    bench.spawn("r1", forked=True)
    bench.wait(has_pid, "r1")
    os.kill(bench.host.read_status()["fork_servers"][0]["pid"], signal.SIGKILL)

    bench.wait(lambda _: bench.host.read_status()["fork_servers"] == [], "r1")
    bench.spawn("r2", forked=True)

    assert bench.wait(has_pid, "r2").running
    assert bench.find("r1").running


def test_stop_while_the_server_imports_ends_the_engine_when_it_is_forked(bench: Bench) -> None:
    bench.spawn(forked=True)

    assert bench.host.stop("r1", generation=1)

    assert not bench.wait(lambda one: not one.running).running


def test_a_module_with_threads_is_not_forked(bench: Bench) -> None:
    plan = ForkPlan(sys.executable, "tests.fakes.threaded_engine", "none", ENV)
    command = Command(
        argv=(sys.executable, "-m", "tests.fakes.threaded_engine"), env=ENV, cwd=str(REPOSITORY), fork=plan
    )

    bench.host.spawn(bench.make_spec(), command=command)

    engine = bench.wait(has_pid)
    assert not engine.forked
    assert "not sound to fork" in Path(engine.log_path).read_text()
