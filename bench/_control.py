"""Memory and CPU of a control plane at rest: an installation of its own on free ports, its engine not counted.

The fork server of the engine's runtime is counted: it stays while nothing is asked of it."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._figures import say
from workers.devices import read_pss

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 400.0
# Imports, first statistics and connections are over after this; leaks are another bench's matter.
SETTLE_S = 30.0
WATCH_S = 30.0


@dataclass(frozen=True)
class AtRest:
    """`pss_mb` of all processes but engines and their children; `cpu_ratio` of a core by the busiest of them."""

    pss_mb: float
    cpu_ratio: float


def measure_control() -> AtRest | None:
    """None when the installation did not start."""
    with tempfile.TemporaryDirectory(prefix="sl-") as folder:
        env = _environment(Path(folder))
        command = [str(ROOT / "sluice"), "up", "--detach"]
        try:
            subprocess.run(command, env=env, stdout=2, timeout=START_LIMIT_S, check=True)
            time.sleep(SETTLE_S)
            status = _read_status(env)
            leaders = _find_leaders(status, Path(folder) / "data")
            return AtRest(_add_up(status, leaders), _watch_cpu(leaders))
        except (subprocess.SubprocessError, OSError, ValueError) as exc:
            say(f"the installation could not be measured: {exc}")
            return None
        finally:
            subprocess.run([str(ROOT / "sluice"), "down"], env=env, stdout=2, timeout=60, check=False)


def _find_leaders(status: dict[str, Any], data: Path) -> dict[int, str]:
    leaders = {int(one["pid"]): str(one["name"]) for one in status["processes"] if one.get("pid")}
    keeper = data / "engines" / "nodehost.lock"
    if keeper.exists():
        leaders[int(keeper.read_text())] = "nodehost"
    return leaders


def _watch_cpu(leaders: dict[int, str]) -> float:
    """Share of a core over WATCH_S, of each process by itself; PostgreSQL's own processes are one each."""
    names = {pid: name for leader, name in leaders.items() for pid in _tree(leader) if name != "nodehost"}
    names |= {pid: name for pid, name in leaders.items() if name == "nodehost"}
    before = {pid: _read_cpu_s(pid) for pid in names}
    time.sleep(WATCH_S)
    shares = {pid: (_read_cpu_s(pid) - spent) / WATCH_S for pid, spent in before.items()}
    for pid, share in sorted(shares.items(), key=lambda item: -item[1])[:8]:
        say(f"{names[pid]:12} {share:8.1%} of a core")
    return round(max(shares.values()), 4)


def _read_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _add_up(status: dict[str, Any], leaders: dict[int, str]) -> float:
    engines = {int(one["pid"]) for one in status["replicas"] if one.get("pid")}
    total = 0
    for pid, name in leaders.items():
        own = sum(read_pss(one) or 0 for one in _tree(pid) if not _tree_has(one, engines))
        say(f"{name:12} {own / 1e6:8.1f} MB")
        total += own
    return round(total / 1e6, 1)


def _tree_has(pid: int, engines: set[int]) -> bool:
    """Engines are children of the node host, each the leader of its session."""
    try:
        return os.getsid(pid) in engines
    except ProcessLookupError:
        return True


def _tree(pid: int) -> list[int]:
    found = [pid]
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return found
    for child in text.split():
        found += _tree(int(child))
    return found


def _read_status(env: dict[str, str]) -> dict[str, Any]:
    command = [str(ROOT / "sluice"), "status", "--json"]
    answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    status: dict[str, Any] = json.loads(answer.stdout)
    return status


def _environment(folder: Path) -> dict[str, str]:
    own = {
        "SLUICE_DATA_DIR": str(folder / "data"),
        "SLUICE_WEB_PORT": str(_free_port()),
        "SLUICE_GATEWAY_PORT": str(_free_port()),
    }
    return {**os.environ, **own}


def _free_port() -> int:
    """Below the kernel's ephemeral range, where an installation's fixed ports must lie."""
    for port in random.sample(range(22000, 32000), 50):
        with socket.socket() as bound:
            try:
                bound.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port was found in fifty tries")
