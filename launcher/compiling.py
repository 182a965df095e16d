"""The gateway's hot modules as machine code: made once per change of their sources, in the cache folder."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from launcher.environments import STAMP, Environment, ensure_compiler
from launcher.installing import InstallFailed
from launcher.layout import ROOT, find_cache
from launcher.locks import hold_lock
from launcher.progress import Progress
from pool.compiled import STAMP as SOURCES
from pool.compiled import hash_sources
from pool.env import env_bool

_LIMIT_S = 900.0
# Besides the newest, for checkouts that go back and forth, and for gateways that run on.
_KEPT = 6


def ensure_compiled(progress: Progress) -> Path | None:
    """The folder for SLUICE_COMPILED_DIR; None where the gateway runs from its sources: that costs more CPU, and
    nothing else. Never raises for want of a compiler or a network."""
    if not env_bool("SLUICE_COMPILE", True):
        return None
    folder = find_cache() / "compiled" / hash_sources()
    if (folder / STAMP).exists():
        return folder
    if not has_compiler():
        progress.say(
            "No C compiler was found: the gateway runs interpreted, at twice the CPU. See docs/gateway.md."
        )
        return None
    with progress.step("gateway: compile") as step, hold_lock(folder.with_suffix(".lock")):
        if not (folder / STAMP).exists():
            try:
                _compile(ensure_compiler(progress), folder)
            except (InstallFailed, OSError, subprocess.SubprocessError):
                step.note = f"failed, runs interpreted; see {folder.with_suffix('.log')}"
                return None
            _forget_old(folder)
    return folder


def name_compiled(folder: Path | None) -> dict[str, str]:
    """For the gateway's environment."""
    return {} if folder is None else {"SLUICE_COMPILED_DIR": str(folder)}


def has_compiler() -> bool:
    """A compiler, and the interpreter's own headers."""
    compiler = os.environ.get("CC") or "cc"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return shutil.which(compiler.split()[0]) is not None and header.exists()


def _compile(environment: Environment, folder: Path) -> None:
    half = folder.with_suffix(".partial")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    log = folder.with_suffix(".log")
    command = [str(environment.python), "-m", "launcher.compile_modules", str(half)]
    env = {name: os.environ[name] for name in ("PATH", "HOME", "CC", "TMPDIR") if name in os.environ}
    with log.open("wb") as output:
        subprocess.run(
            command, cwd=ROOT, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=True,
            timeout=_LIMIT_S, preexec_fn=_be_nice,
        )  # fmt: skip
    (half / SOURCES).write_text(folder.name)
    (half / STAMP).touch()
    shutil.rmtree(folder, ignore_errors=True)
    half.rename(folder)


def _be_nice() -> None:
    # Beside the installation of engines, which has more to do.
    os.nice(5)


def _forget_old(newest: Path) -> None:
    complete = [path for path in newest.parent.iterdir() if (path / STAMP).exists()]
    for path in sorted(complete, key=lambda one: one.stat().st_mtime, reverse=True)[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".log").unlink(missing_ok=True)
