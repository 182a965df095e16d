"""Starts that cannot work are refused in a sentence; a stop leaves nothing, whatever is broken."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.layout import ROOT
from tests.journeys.installation import Installed, find_ports, make_installed, remove, send_all, wait_until

SMALL_DISK_MIB = 24


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Installed]:
    """A data folder of its own, side by side with the shared installation."""
    installed = make_installed(tmp_path / "var")
    yield installed
    remove(installed)


def test_a_running_data_folder_is_refused(sluice: Installed) -> None:
    pid = sluice.find("web").pid

    for arguments in (("up", "--engine", "sim"), ("up", "--detach", "--engine", "sim")):
        refused = sluice.run(*arguments)

        assert refused.returncode == 1
        said = refused.stdout + refused.stderr
        assert "belongs to a running installation" in said
        assert "./sluice down" in said
        assert "Traceback" not in said
    assert sluice.find("web").pid == pid


@pytest.mark.parametrize("variable", ["SLUICE_WEB_PORT", "SLUICE_GATEWAY_PORT"])
def test_a_port_in_use_is_named_with_its_holder_and_its_variable(second: Installed, variable: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", find_ports(1)[0]))
        held.listen(1)
        port = held.getsockname()[1]
        second.variables[variable] = str(port)

        refused = second.run("up", "--detach", "--engine", "sim", "--no-demo")

    assert refused.returncode == 1
    said = refused.stdout + refused.stderr
    assert f"Port {port}" in said
    assert variable in said
    assert str(os.getpid()) in said
    assert second.list_processes() == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLUICE_WEB_PORT", "eighty"),
        ("SLUICE_GATEWAY_PORT", "99999"),
        ("SLUICE_SECRET_KEY_FILE", "/nowhere/key"),
        ("SLUICE_NODE_LABELS", "{not json"),
        ("SLUICE_ENGINE_PORTS", "21999-21000"),
        ("SLUICE_BIND", "203.0.113.7"),
    ],
)
def test_a_wrong_variable_is_named_before_anything_runs(second: Installed, variable: str, value: str) -> None:
    second.variables.pop(variable.removesuffix("_FILE"), None)
    second.variables[variable] = value

    refused = second.run("up", "--detach", "--engine", "sim", "--no-demo")

    said = refused.stdout + refused.stderr
    assert refused.returncode == 1, said
    assert variable in said
    assert "Traceback" not in said
    assert second.list_processes() == []


def test_a_full_disk_is_called_one(tmp_path: Path) -> None:
    """On a file system of 24 MiB of its own: a mount in a namespace that ends with the command."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={SMALL_DISK_MIB}m none {disk}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("SKIPPED ALOUD: mounts in a namespace are forbidden here, so no disk can be full")
    installed = make_installed(disk / "var")
    command = f"{mount} && exec {ROOT / 'sluice'} up --engine sim --no-demo --data {installed.layout.data}"

    outcome = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        env=installed.variables,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    said = outcome.stdout + outcome.stderr
    assert outcome.returncode == 1, said
    assert re.search("disk is full|No space left", said), said
    assert "Traceback" not in said
    assert installed.list_processes() == []


def test_down_with_postgresql_hung_leaves_nothing(second: Installed) -> None:
    second.up("--engine", "sim", "--no-demo")
    tree = second.postgres_tree()
    send_all(tree, signal.SIGSTOP)

    stopped = second.run("down")

    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert second.list_processes() == []
    # Their command lines do not name the data folder.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in tree), limit_s=5)
    assert not second.layout.lock.exists()
    assert not second.layout.record.exists()
