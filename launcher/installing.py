"""Runs venv and pip with their output in a file, counts packages as it goes, and turns failures into plain
words."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.children import wrap_command
from launcher.errors import LauncherError
from launcher.progress import Step
from pool.env import env_str

# The one index that is named anywhere: the PyTorch project's own wheels for CPUs, which PyPI does not carry.
DEFAULT_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
NETWORK_SIGNS = re.compile(
    "NewConnectionError|ConnectTimeout|ReadTimeout|ConnectionError|ConnectionReset|name resolution|SSLError"
    "|ProxyError|ProtocolError|Max retries exceeded|Read timed out"
)
POLL_S = 0.3
KILL_AFTER_S = 3600.0


class InstallFailed(LauncherError):
    """pip or venv failed; the message says why in a sentence and where the whole output lies."""

    code: ClassVar[str] = "install_failed"


@dataclass(frozen=True)
class PipRun:
    """One `pip install --no-deps` into the environment of `python`, or into a bare folder."""

    python: Path
    locks: tuple[Path, ...]
    log: Path
    target: Path | None = None
    options: tuple[str, ...] = ()

    def command(self, *extra: str) -> list[str]:
        command = [
            str(self.python),
            "-I",
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--progress-bar",
            "off",
            "--no-input",
        ]
        if self.target:
            command += ["--target", str(self.target)]
        for lock in self.locks:
            command += ["-r", str(lock)]
        return [*command, *self.options, *extra]


def create_venv(folder: Path, *, log: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Appended, so that the log of a failed earlier attempt stays readable.
    with open(log, "ab") as output:
        command = [sys.executable, "-I", "-m", "venv", str(folder)]
        outcome = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    if outcome.returncode != 0:
        raise explain_failure(log, what=f"python -m venv {folder}")


def run_pip(run: PipRun, *, step: Step | None = None) -> None:
    """Installs; a lock that asks for a CPU build of torch gets the second index when pip's own sources lack
    it."""
    total = sum(count_packages(lock) for lock in run.locks)
    if _attempt(run.command(), run, step=step, total=total):
        return
    if _lacks_cpu_torch(run.log):
        index = env_str("SLUICE_TORCH_INDEX", DEFAULT_TORCH_INDEX)
        if _attempt(run.command("--extra-index-url", index), run, step=step, total=total):
            return
    raise explain_failure(run.log, what="pip install")


def count_packages(lock: Path) -> int:
    return sum(
        1 for line in lock.read_text().splitlines() if line.strip() and not line.startswith(("#", "-"))
    )


def explain_failure(log: Path, *, what: str) -> InstallFailed:
    text = log.read_text(errors="replace")[-20_000:]
    if "No space left on device" in text:
        why = "The disk is full: free some room, or set SLUICE_CACHE_DIR (and TMPDIR) to a larger disk."
    elif NETWORK_SIGNS.search(text):
        why = (
            "The package index could not be reached: check the network and pip's settings, then run it again."
        )
    elif "No matching distribution found" in text:
        line = next((line for line in reversed(text.splitlines()) if "No matching distribution" in line), "")
        why = f"{line.removeprefix('ERROR: ').strip()} (a package index that pip is set to does not have it)."
    else:
        errors = [line for line in text.splitlines() if "error" in line.lower()]
        why = errors[-1].strip() if errors else "It gave no reason."
    return InstallFailed(f"{what} failed. {why} The whole output is in {log}.", log=str(log))


def _attempt(command: Sequence[str], run: PipRun, *, step: Step | None, total: int) -> bool:
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with open(run.log, "wb") as output:
        # An interrupted set-up leaves no pip behind: it dies with the thread that waits for it.
        wrapped = wrap_command(command, death_signal=signal.SIGKILL, identity="plain")
        process = subprocess.Popen(
            wrapped, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_pip_environment(), cwd="/"
        )
        try:
            deadline = time.monotonic() + KILL_AFTER_S
            while process.poll() is None and time.monotonic() < deadline:
                if step and total:
                    step.note = read_stage(run.log, total=total)
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return process.returncode == 0


def read_stage(log: Path, *, total: int) -> str:
    """How far pip is, from its own output."""
    text = log.read_text(errors="replace")
    if "Installing collected packages" in text:
        return f"installing {total} packages"
    return f"package {min(text.count('Collecting '), total)} of {total}"


def _lacks_cpu_torch(log: Path) -> bool:
    return bool(
        re.search(r"No matching distribution found for torch==\S+\+cpu", log.read_text(errors="replace"))
    )


def _pip_environment() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
