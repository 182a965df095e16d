"""Whole installations with the simulated engine: started, hurt and stopped as an operator would."""

import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.engines import list_engines
from launcher.identity import find_start_time, is_running, list_pids
from launcher.layout import ROOT, Layout
from tests.launcher.fake_processes import wait_until

START_S = 180
LOWEST_PORT, HIGHEST_PORT = 22_000, 32_000


@dataclass(frozen=True)
class Installed:
    layout: Layout
    variables: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "sluice"), *arguments, "--data", str(self.layout.data)]
        return subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=START_S, check=False
        )

    def read_status(self) -> dict[str, Any]:
        status = json.loads(self.run("status", "--json").stdout)
        assert isinstance(status, dict)
        return status

    def find_pid(self, name: str) -> int:
        return next(int(entry["pid"]) for entry in self.read_status()["processes"] if entry["name"] == name)

    def list_processes(self) -> list[int]:
        """Everything alive whose command line or folder is this installation's."""
        found = []
        folder = os.fsencode(self.layout.data)
        for pid in list_pids():
            try:
                words = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if folder in words and pid != os.getpid():
                found.append(pid)
        return found


def find_ports() -> tuple[int, int]:
    ports: list[int] = []
    while len(ports) < 2:
        port = random.randint(LOWEST_PORT, HIGHEST_PORT)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0 and port not in ports:
                ports.append(port)
    return ports[0], ports[1]


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    web, gateway = find_ports()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SLUICE_CACHE_DIR") if name in os.environ}
    variables = kept | {"SLUICE_WEB_PORT": str(web), "SLUICE_GATEWAY_PORT": str(gateway)}
    installation = Installed(Layout(tmp_path / "var"), variables)
    started = installation.run("up", "--detach", "--engine", "sim")
    assert started.returncode == 0, started.stdout + started.stderr
    yield installation
    installation.run("down")


def kill_supervisor(installed: Installed) -> None:
    os.kill(json.loads(installed.layout.record.read_text())["pid"], signal.SIGKILL)


def test_an_installation_survives_its_supervisor_and_stops_without_postgres(installed: Installed) -> None:
    status = installed.read_status()
    assert status["ready"] is True
    assert [replica["phase"] for replica in status["replicas"]] == ["ready"]
    assert "sk-sluice-" not in (installed.layout.logs / "up.log").read_text()
    engine = list_engines(installed.layout)[0]

    refused = installed.run("up", "--engine", "sim")
    assert refused.returncode == 1
    assert "belongs to a running installation" in refused.stderr

    kill_supervisor(installed)
    again = installed.run("up", "--detach", "--engine", "sim")
    assert again.returncode == 0, again.stdout + again.stderr
    assert is_running(engine.pid, engine.start_time)
    assert installed.read_status()["ready"] is True

    postgres = installed.find_pid("postgres")
    started = find_start_time(postgres)
    kill_supervisor(installed)
    os.kill(postgres, signal.SIGKILL)
    wait_until(lambda: not is_running(postgres, started))
    assert installed.run("down").returncode == 0
    assert installed.list_processes() == []
    assert not installed.layout.lock.exists()
