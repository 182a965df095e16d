"""The driver of the simulated engine: the same life and API as vLLM, no model, no GPU. Always shown as simulated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pool.domain.profiles import EngineSettings, parse_settings
from pool.domain.start_errors import StartFailure
from pool.ports import Command, EngineHealth, EngineLoad, EngineSpec, PrintedFigures
from workers.engines import http
from workers.engines.vllm import VllmDriver, remove_stale_socket
from workers.plugin.sluice_engine.ring import FILE_NAME, RING_VARIABLE

SERVER_MODULE = "workers.engines.sim_server"
REPOSITORY = Path(__file__).resolve().parent.parent.parent
# The latency model of a version or profile, beside its weights or under `sim` in the settings.
SETTINGS_FILE = "sim.json"
# KV bytes per token of SmolLM2-135M in bf16, for profiles that give the cache in bytes.
KV_BYTES_PER_TOKEN = 23_040
REHEARSALS: Mapping[str, Mapping[str, object]] = {
    "garbage": {"garbage": True, "step_s": 0.009},
    "errors": {"error_ratio": 0.25},
    "delay": {"delay_s": 0.8},
}
"""What a profile's `rehearsal` does. Garbage comes a little faster than sense, as it does where a cache is broken."""


class SimDriver:
    """Satisfies pool.ports.EngineDriver. Its server prints and counts as vLLM does, so readers are shared."""

    kind = "sim"

    def __init__(self) -> None:
        self._vllm = VllmDriver()

    def prepare(self, spec: EngineSpec) -> bool:
        Path(spec.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale_socket(spec.address)
        return True

    def build_command(self, spec: EngineSpec) -> Command:
        given = {name: value for name, value in spec.settings.items() if name != "sim"}
        model = latency_settings(parse_settings(given), _read_sim(spec))
        argv = [spec.runtime.interpreter, "-m", SERVER_MODULE, "--served-model-name", spec.served_model_name]
        if spec.address.startswith(http.UNIX_PREFIX):
            argv += ["--uds", spec.address.removeprefix(http.UNIX_PREFIX)]
        else:
            parts = urlsplit(spec.address)
            argv += ["--host", str(parts.hostname), "--port", str(parts.port)]
        argv += ["--settings", json.dumps(model)]
        env = {
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PATH": "/usr/bin:/bin",
            RING_VARIABLE: f"{spec.directory}/{FILE_NAME}",
        }
        secret = {"SLUICE_ENGINE_KEY": spec.engine_key}
        return Command(argv=tuple(argv), env=env, cwd=str(REPOSITORY), secret_env=secret)

    def read_health(self, address: str, *, engine_key: str, timeout_s: float = 1.0) -> EngineHealth:
        return self._vllm.read_health(address, engine_key=engine_key, timeout_s=timeout_s)

    def read_load(self, address: str, *, engine_key: str, timeout_s: float = 1.0) -> EngineLoad:
        return self._vllm.read_load(address, engine_key=engine_key, timeout_s=timeout_s)

    def read_figures(self, log_text: str) -> PrintedFigures:
        return self._vllm.read_figures(log_text)

    def read_stage(self, log_text: str) -> str:
        return self._vllm.read_stage(log_text)

    def classify_failure(self, log_text: str, *, exit_code: int | None, signal: int | None) -> StartFailure:
        return self._vllm.classify_failure(log_text, exit_code=exit_code, signal=signal)


def latency_settings(settings: EngineSettings, sim: Mapping[str, Any]) -> dict[str, Any]:
    """What the profile says, under what the rehearsal says; names that the model does not know are refused."""
    kv_bytes = settings.kv_cache_memory_bytes
    from_profile = {
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_model_len": settings.max_model_len,
        "block_size": settings.block_size,
        "kv_tokens": kv_bytes // KV_BYTES_PER_TOKEN if kv_bytes else None,
        "enable_prefix_caching": settings.enable_prefix_caching,
        **REHEARSALS.get(settings.rehearsal or "", {}),
    }
    return {name: value for name, value in {**from_profile, **sim}.items() if value is not None}


def _read_sim(spec: EngineSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        content = json.loads((Path(spec.model_path) / SETTINGS_FILE).read_text())
        found = content if isinstance(content, dict) else {}
    except (OSError, ValueError):
        pass
    given = spec.settings.get("sim")
    return {**found, **(given if isinstance(given, Mapping) else {})}
