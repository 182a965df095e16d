"""The commands as a person types them, from another folder, without any environment."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.commands import bench, test
from launcher.commands.logs import list_logs, read_last_lines
from launcher.layout import ROOT, Layout

SLUICE = ROOT / "sluice"


def run_sluice(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), **variables}
    return subprocess.run(
        [SLUICE, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def make_python(folder: Path, script: str) -> Path:
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = make_python(tmp_path, "echo '/usr/bin/python3 is Python 3.9'; exit 1")

    outcome = run_sluice("status", cwd=tmp_path, SLUICE_PYTHON=str(old))

    assert outcome.returncode == 1
    assert "Python 3.9" in outcome.stderr
    assert "3.11 or newer" in outcome.stderr


def test_a_named_python_that_is_absent_is_told(tmp_path: Path) -> None:
    outcome = run_sluice("status", cwd=tmp_path, SLUICE_PYTHON="/nowhere/python")

    assert outcome.returncode == 1
    assert "/nowhere/python: not found" in outcome.stderr


def test_a_relative_data_folder_counts_from_where_the_command_is_called(tmp_path: Path) -> None:
    outcome = run_sluice("status", "--data", "mine", cwd=tmp_path)

    assert outcome.returncode == 3
    assert outcome.stdout == f"Nothing runs in {tmp_path}/mine.\n"
    assert not (tmp_path / "mine").exists()


def test_it_works_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "sluice").symlink_to(SLUICE)

    outcome = subprocess.run([tmp_path / "sluice", "--help"], capture_output=True, text=True, check=False)

    assert outcome.returncode == 0
    assert "telemetry" in outcome.stdout


def test_a_wrong_variable_is_named_in_one_line(tmp_path: Path) -> None:
    outcome = run_sluice("up", "--no-demo", "--data", "d", cwd=tmp_path, SLUICE_WEB_PORT="x")

    assert outcome.returncode == 1
    assert outcome.stderr == "sluice: SLUICE_WEB_PORT must be a whole number, not 'x'.\n"


def test_equal_ports_are_refused(tmp_path: Path) -> None:
    outcome = run_sluice(
        "up", "--data", "d", cwd=tmp_path, SLUICE_WEB_PORT="18991", SLUICE_GATEWAY_PORT="18991"
    )

    assert outcome.returncode == 1
    assert "must differ" in outcome.stderr
    assert not (tmp_path / "d" / "lock").exists()


@pytest.mark.parametrize("name", ["worker", "web", "control", "telemetry"])
def test_a_process_of_a_further_host_names_what_it_lacks(tmp_path: Path, name: str) -> None:
    outcome = run_sluice(name, "--data", "d", cwd=tmp_path, SLUICE_REDIS_URL="redis://10.0.0.1:6379/0")

    assert outcome.returncode == 1
    assert "SLUICE_DATABASE_URL, SLUICE_SECRET_KEY" in outcome.stderr
    assert "SLUICE_REDIS_URL" not in outcome.stderr


def test_a_gateway_of_a_further_host_needs_no_database(tmp_path: Path) -> None:
    outcome = run_sluice("gateway", "--data", "d", cwd=tmp_path)

    assert outcome.returncode == 1
    assert "SLUICE_DATABASE_URL" not in outcome.stderr
    assert "SLUICE_SECRET_KEY" in outcome.stderr


def test_an_unknown_benchmark_lists_those_there_are(tmp_path: Path) -> None:
    outcome = run_sluice("bench", "nothing", cwd=tmp_path)

    assert outcome.returncode == 1
    assert "There is no benchmark 'nothing'." in outcome.stderr
    assert "nothing" not in bench.list_benchmarks()


def test_an_unknown_log_lists_those_there_are(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "d")
    layout.create()
    (layout.logs / "web.log").write_text("one\ntwo\n")
    (layout.engines / "r1.1").mkdir()
    (layout.engines / "r1.1" / "engine.log").write_text("loading\n")

    outcome = run_sluice("logs", "nobody", "--data", "d", cwd=tmp_path)

    assert outcome.returncode == 1
    assert "Logs: web, r1" in outcome.stderr
    assert read_last_lines(list_logs(layout)["web"], 1) == ["two"]
    assert run_sluice("logs", "r1", "--data", "d", cwd=tmp_path).stdout == "loading\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"engine", "browser"}),
        (["-m", "not engine"], {"browser"}),
        (["-m", "engine"], {"engine"}),
        (["-mnot engine and not browser"], set()),
        (["-m", "engine or browser"], {"engine", "browser"}),
        (["-m", "not (engine"], {"engine", "browser"}),
        (["tests/launcher"], set()),
        (["tests/launcher/test_locks.py::test_x", "-q"], set()),
        (["-q", "-m", "browser"], {"browser"}),
    ],
)
def test_only_what_a_test_run_needs_is_set_up(arguments: list[str], expected: set[str]) -> None:
    assert {mark for mark in ("engine", "browser") if test.wants(mark, arguments)} == expected
