"""The demo model's folder in the cache: converted once, verified, complete or absent."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import ClassVar

from launcher.children import wrap_command
from launcher.environments import Environment, check_room, ensure_convert
from launcher.errors import LauncherError
from launcher.layout import ROOT, find_cache
from launcher.locks import hold_lock
from launcher.progress import Progress, Step

NAME = "SmolLM2-135M-Instruct"
SCRIPT = ROOT / "launcher" / "convert_smollm2.py"
NEEDED_BYTES = 700_000_000
TIMEOUT_S = 1200.0


class ConversionFailed(LauncherError):
    """The weights could not be converted; the message ends with what the conversion said."""

    code: ClassVar[str] = "conversion_failed"


def find_demo_model() -> Path:
    digest = hashlib.sha256(SCRIPT.read_bytes())
    for name in ("requirements-convert.txt", "requirements-demo-model.txt"):
        digest.update((ROOT / name).read_bytes())
    return find_cache() / "models" / f"{NAME}-{digest.hexdigest()[:12]}"


def is_complete(folder: Path) -> bool:
    """Every file of the manifest is there with its size. Hashes are the node's to check, when it registers
    a version."""
    try:
        files = json.loads(_manifest_path(folder).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return False
    return all(_has_size(folder / name, facts["size_bytes"]) for name, facts in files.items())


def ensure_demo_model(engine: Environment, progress: Progress) -> Path:
    folder = find_demo_model()
    if is_complete(folder):
        return folder
    convert = ensure_convert(progress, engine)
    with progress.step("demo model: conversion") as step, hold_lock(folder.with_suffix(".lock")):
        if not is_complete(folder):
            check_room(folder.parent, NEEDED_BYTES, what="The demo model")
            _convert(engine, convert, folder, step=step)
    return folder


def _convert(engine: Environment, convert: Environment, folder: Path, *, step: Step) -> None:
    half = folder.with_suffix(".partial")
    for leftover in (folder, half):
        shutil.rmtree(leftover, ignore_errors=True)
    log = folder.with_suffix(".log")
    command = [str(engine.python), "-I", str(SCRIPT), str(convert.folder), str(half)]
    with open(log, "wb") as output:
        wrapped = wrap_command(command, death_signal=signal.SIGKILL, identity="plain")
        process = subprocess.Popen(
            wrapped, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environment(), cwd="/"
        )
        try:
            _watch(process, log, step)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-6:])
        raise ConversionFailed(
            f"The demo model could not be converted. {log} ends with:\n{said}", log=str(log)
        )
    _manifest_path(half).replace(_manifest_path(folder))
    half.rename(folder)


def _watch(process: subprocess.Popen[bytes], log: Path, step: Step) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    stages = (
        "loading the libraries",
        "reading the tokenizer",
        "dequantizing the weights",
        "writing",
        "verifying",
    )
    while process.poll() is None and time.monotonic() < deadline:
        said = log.read_text(errors="replace").splitlines()
        step.note = next((line for line in reversed(said) if line in stages), "starting")
        time.sleep(0.5)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLUICE_"))}
    return kept | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"}


def _manifest_path(folder: Path) -> Path:
    return folder.with_name(folder.name + ".manifest.json")


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False
