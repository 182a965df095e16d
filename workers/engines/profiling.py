"""A profiler's run over a few steps of a serving engine, on demand: start, wait for the steps, stop, read, reduce.

By vLLM's own routes, which the driver switches on (they cost nothing until they are used: the profiler is made at the
first start). Steps are hardly slower meanwhile, but the engine stands still while it writes the trace: 0.3 s for 10
steps of SmolLM2 on an idle CPU, a few times that on a busy one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from pool.domain.errors import PoolError
from pool.domain.step_profiles import MAX_STEPS
from pool.ports import EngineSpec
from workers.engines import http
from workers.engines.trace import Profile
from workers.engines.trace_child import TOO_LARGE, load_profile

FOLDER: Final = "profile"
# Of JSON; in memory about eight times as much. Fifty steps of a model of 30 layers on the CPU are 30 MiB.
MAX_TRACE_BYTES: Final = 192 * 2**20
STOP_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.1
READ_LIMIT_S: Final = 180.0
"""Of a child with low priority; a busy host gives it little."""
CHILD: Final = ("-m", "workers.engines.trace_child")
REPOSITORY: Final = Path(__file__).resolve().parents[2]


class ProfileFailed(PoolError):
    """No profile could be made of this engine now."""

    code: ClassVar[str] = "profile_failed"


def profile_folder(spec: EngineSpec) -> str:
    return f"{spec.directory}/{FOLDER}"


def profiler_config(folder: str) -> str:
    """The value of `--profiler-config`: the device's and the engine core's operations, without Python's stacks (which
    would name files and slow the engine), and without the API server."""
    return json.dumps(
        {
            "profiler": "torch",
            "torch_profiler_dir": folder,
            "torch_profiler_with_stack": False,
            # Packing is nine tenths of the time for which the engine stands still to write its trace.
            "torch_profiler_use_gzip": False,
            "torch_profiler_dump_cuda_time_total": False,
            "ignore_frontend": True,
        }
    )


def profile_engine(
    address: str,
    *,
    engine_key: str,
    folder: str,
    steps: int = 20,
    limit_s: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Profile:
    """Blocks until `steps` (1 to 50) steps were seen, at most `limit_s` and the time of the engine's writing.

    Raises ProfileFailed: no steps came, the engine refuses, the trace is too large. Leaves no file behind.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise ProfileFailed(f"A profile takes 1 to {MAX_STEPS} steps.", steps=steps)
    prefix = f"p{secrets.token_hex(6)}"
    try:
        _post(address, "/start_profile", engine_key, {"profile_prefix": prefix, "max_iterations": steps})
        try:
            deadline = clock() + limit_s
            while not _find_traces(folder, prefix) and clock() < deadline:
                sleep(POLL_S)
        finally:
            _post(address, "/stop_profile", engine_key, {})
        return _read_profile(folder, prefix)
    finally:
        _clear(folder, prefix)


def _post(address: str, path: str, engine_key: str, body: dict[str, Any]) -> None:
    try:
        answer = http.call(address, path, engine_key=engine_key, body=body, timeout_s=STOP_TIMEOUT_S)
    except http.EngineUnreachable as exc:
        raise ProfileFailed("The engine does not answer its profiler's routes.", path=path) from exc
    if answer.status == 404:
        raise ProfileFailed("This engine was started without a profiler. Restart the replica.", path=path)
    if answer.status != 200:
        raise ProfileFailed(
            "The engine refused; another profile may be running.", path=path, status=answer.status
        )


def _find_traces(folder: str, prefix: str) -> list[Path]:
    return sorted(Path(folder).glob(f"{prefix}_*.pt.trace.json*"))


def _read_profile(folder: str, prefix: str) -> Profile:
    """Of the first worker: with several devices they do the same side by side."""
    traces = _find_traces(folder, prefix)
    if not traces:
        raise ProfileFailed("The engine wrote no trace: no step ran while the profiler was on.")
    answer = _ask_child(traces[0])
    if "failed" in answer:
        raise ProfileFailed(str(answer["failed"]))
    return load_profile(answer["profile"])


def _ask_child(path: Path) -> dict[str, Any]:
    """Neither its time nor its memory is the worker's."""
    command = [sys.executable, *CHILD, str(path), str(MAX_TRACE_BYTES)]
    try:
        ended = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=READ_LIMIT_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(ended.stdout)
    except subprocess.TimeoutExpired as exc:
        raise ProfileFailed(TOO_LARGE, limit_s=READ_LIMIT_S) from exc
    except ValueError as exc:
        # It was ended before it could say anything: by the kernel, for its time or its memory.
        raise ProfileFailed(TOO_LARGE, exit_code=ended.returncode) from exc
    return answer


def _clear(folder: str, prefix: str) -> None:
    for path in Path(folder).glob(f"{prefix}_*"):
        with contextlib.suppress(OSError):
            path.unlink()
