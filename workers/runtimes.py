"""Probes a runtime in a process of its own interpreter: what it is and what it can do on this host.

The worker never imports torch or an engine itself (FC-69).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from pool.domain.errors import PoolError
from pool.env import ConfigError, env_json
from pool.ports import RuntimeFacts, RuntimeRef

# Imports of an engine take 10 to 60 s on cold disks.
PROBE_LIMIT_S = 180.0
PROBE_FILE = Path(__file__).parent / "engines" / "probe_vllm.py"
SIM_VERSION = "sim-1"


class ProbeFailed(PoolError):
    """The runtime's interpreter does not run, or its engine does not import."""

    code: ClassVar[str] = "probe_failed"


def read_runtimes() -> tuple[RuntimeRef, ...]:
    """Those that SLUICE_RUNTIMES lists: `[{"name", "kind", "interpreter", "pythonpath"?, "platform"?}]`."""
    listed: Any = env_json("SLUICE_RUNTIMES", [])
    try:
        return tuple(
            RuntimeRef(
                name=str(one["name"]),
                kind=str(one["kind"]),
                interpreter=str(one["interpreter"]),
                pythonpath=tuple(str(path) for path in one.get("pythonpath", ())),
                platform=str(one.get("platform", "cpu")),
            )
            for one in listed
        )
    except (TypeError, KeyError, AttributeError) as exc:
        raise ConfigError(
            "SLUICE_RUNTIMES must be a JSON list of objects with name, kind and interpreter.",
            variable="SLUICE_RUNTIMES",
        ) from exc


def probe_runtime(runtime: RuntimeRef, *, limit_s: float = PROBE_LIMIT_S) -> RuntimeFacts:
    """Blocking, up to `limit_s`. Raises ProbeFailed."""
    if runtime.kind == "sim":
        return _sim_facts(runtime)
    return read_facts(runtime, _run_probe(runtime, limit_s))


def read_facts(runtime: RuntimeRef, content: dict[str, Any]) -> RuntimeFacts:
    """The facts from the probe's answer; a key that is missing stays unknown."""
    return RuntimeFacts(
        name=runtime.name,
        kind=runtime.kind,
        platform=str(content.get("platform") or runtime.platform),
        version=str(content.get("version", "")),
        python_version=str(content.get("python_version", "")),
        torch_version=content.get("torch_version"),
        quantizations=tuple(content.get("quantizations", ())),
        kv_cache_dtypes=tuple(content.get("kv_cache_dtypes", ())),
        block_sizes=tuple(content.get("block_sizes", ())),
        default_block_size=content.get("default_block_size"),
        cpu_flags=tuple(content.get("cpu_flags", ())),
        fastest_dtype=content.get("fastest_dtype"),
    )


def _run_probe(runtime: RuntimeRef, limit_s: float) -> dict[str, Any]:
    env = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    env |= {"HOME": "/nonexistent", "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        answer = subprocess.run(
            [runtime.interpreter, "-P", str(PROBE_FILE)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ProbeFailed("The runtime's probe did not end in time.", runtime=runtime.name) from exc
    except OSError as exc:
        raise ProbeFailed(
            f"The runtime's interpreter cannot be run: {exc.strerror}. Install the runtime again.",
            runtime=runtime.name,
        ) from exc
    try:
        content: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError) as exc:
        last = answer.stderr.strip().splitlines()[-1:] or ["no output"]
        raise ProbeFailed(
            f"The runtime's engine cannot be imported: {last[0][:200]}", runtime=runtime.name
        ) from exc
    return content


def _sim_facts(runtime: RuntimeRef) -> RuntimeFacts:
    return RuntimeFacts(
        name=runtime.name,
        kind="sim",
        platform=runtime.platform,
        version=SIM_VERSION,
        python_version="",
        torch_version=None,
        quantizations=(),
        kv_cache_dtypes=("auto",),
        block_sizes=(16, 32, 64, 128),
        default_block_size=16,
    )
