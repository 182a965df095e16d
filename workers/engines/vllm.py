"""The driver of vLLM: command line and environment from a profile's settings. Written for 0.32."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from pool.domain.errors import PoolError
from pool.domain.profiles import EngineSettings, parse_settings
from pool.domain.start_errors import StartFailure, classify_failure
from pool.ports import Command, EngineHealth, EngineLoad, EngineSpec, ForkPlan, PrintedFigures
from workers.engines import http, metrics, printed
from workers.engines.profiling import profile_folder, profiler_config
from workers.plugin.sluice_engine.ring import FILE_NAME, RING_VARIABLE

ENTRY_MODULE = "vllm.entrypoints.launchers.api_server.entry"
KEY_GATE = "sluice_engine.auth.KeyGate"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Read when modules are imported, so a fork server runs under them and serves only engines that share them.
_COMMON_ENV: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_COLOR": "0",
    "NO_COLOR": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # OpenBLAS would otherwise start threads at import, and a fork server must have a single one.
    "OPENBLAS_NUM_THREADS": "1",
}
# Settings that become one flag with their value.
_VALUE_FLAGS: Mapping[str, str] = {
    "quantization": "--quantization",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "reasoning_parser": "--reasoning-parser",
}
_SWITCHES: Mapping[str, str] = {
    "enable_prefix_caching": "enable-prefix-caching",
    "enable_chunked_prefill": "enable-chunked-prefill",
}
GIB = 2**30
# A name that never resolves (RFC 2606): an image by URL would make the engine fetch what a caller names, from
# inside the network (FC-50). Images in the request itself (data:) are taken.
NO_MEDIA_DOMAIN = "none.invalid"
# A Unix socket's path ends at 107 bytes; the engine adds a slash and 36 characters, Python's own ones are shorter.
LONGEST_RPC_FOLDER_BYTES = 68


class RemoteCodeRefused(PoolError):
    """The version's config names code of its own (auto_map), and nobody approved it (FC-52)."""

    code: ClassVar[str] = "remote_code"


class VllmDriver:
    """Satisfies pool.ports.EngineDriver."""

    kind = "vllm"

    def prepare(self, spec: EngineSpec) -> bool:
        refuse_remote_code(spec)
        for folder in (Path(spec.directory), Path(spec.compile_dir).parent / "home"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale_socket(spec.address)
        return share_model_facts(Path(spec.compile_dir))

    def build_command(self, spec: EngineSpec) -> Command:
        """Raises a PoolError for settings outside the schema: no flag is passed on raw."""
        settings = parse_settings(spec.settings)
        fork_env = _fork_env(spec, settings)
        argv = (spec.runtime.interpreter, "-P", "-m", ENTRY_MODULE, *_flags(spec, settings))
        return Command(
            argv=argv,
            env={**fork_env, **_engine_env(spec, settings)},
            cwd=spec.directory,
            secret_env={"SLUICE_ENGINE_KEY": spec.engine_key},
            fork=ForkPlan(spec.runtime.interpreter, ENTRY_MODULE, spec.runtime.platform, fork_env),
        )

    def read_health(self, address: str, *, engine_key: str, timeout_s: float = 1.0) -> EngineHealth:
        try:
            answer = http.call(address, "/health", engine_key=engine_key, timeout_s=timeout_s)
        except http.EngineUnreachable as exc:
            return EngineHealth(answers=False, status=None, detail=str(exc.details.get("cause", "")))
        return EngineHealth(answers=answer.status == 200, status=answer.status)

    def read_load(self, address: str, *, engine_key: str, timeout_s: float = 1.0) -> EngineLoad:
        answer = http.call(address, "/metrics", engine_key=engine_key, timeout_s=timeout_s)
        if answer.status != 200:
            raise http.EngineUnreachable("The engine gives no metrics.", status=answer.status)
        return metrics.read_load(answer.body.decode(errors="replace"))

    def read_figures(self, log_text: str) -> PrintedFigures:
        return printed.read_figures(log_text)

    def read_stage(self, log_text: str) -> str:
        return printed.read_stage(log_text)

    def classify_failure(self, log_text: str, *, exit_code: int | None, signal: int | None) -> StartFailure:
        return classify_failure(log_text, exit_code=exit_code, signal=signal)


def refuse_remote_code(spec: EngineSpec) -> None:
    """Before the launch: `auto_map` in a config means code of the repository."""
    if spec.remote_code_approved:
        return
    for name in ("config.json", "tokenizer_config.json"):
        path = Path(spec.model_path) / name
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("auto_map"):
            raise RemoteCodeRefused(
                f"{name} of this version names code of its own (auto_map). Approve the version's code first.",
                file=name,
                replica=spec.replica_id,
            )


def remove_stale_socket(address: str) -> None:
    """vLLM does not replace a socket file that an earlier engine left."""
    if address.startswith(http.UNIX_PREFIX):
        path = Path(address.removeprefix(http.UNIX_PREFIX))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)


def share_model_facts(compile_dir: Path) -> bool:
    """True when caches of this release were there. Model inspections (10 s each) are shared by all releases.

    vLLM keys them by the hash of the model's source file, so releases of one runtime may share the folder.
    """
    cache = compile_dir / "vllm"
    warm = cache.exists()
    cache.mkdir(parents=True, exist_ok=True)
    shared = compile_dir.parent / "modelinfos"
    shared.mkdir(exist_ok=True)
    link = cache / "modelinfos"
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(shared)
    return warm


def _flags(spec: EngineSpec, settings: EngineSettings) -> Iterator[str]:
    yield from ("--model", spec.model_path, "--served-model-name", spec.served_model_name)
    yield from _address_flags(spec)
    yield from ("--shutdown-timeout", "0", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
    yield from ("--allowed-media-domains", NO_MEDIA_DOMAIN)
    yield from ("--profiler-config", profiler_config(profile_folder(spec)))
    yield from ("--dtype", settings.dtype)
    for name, flag in _VALUE_FLAGS.items():
        value = getattr(settings, name)
        if value is not None:
            yield from (flag, str(value))
    if settings.kv_cache_dtype != "auto":
        yield from ("--kv-cache-dtype", settings.kv_cache_dtype)
    for name, flag in _SWITCHES.items():
        yield f"--{flag}" if getattr(settings, name) else f"--no-{flag}"
    if settings.enforce_eager:
        yield "--enforce-eager"
    if settings.tool_call_parser:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser)
    if spec.remote_code_approved:
        yield "--trust-remote-code"
    yield from _speculative_flags(spec, settings)
    yield from _platform_flags(spec, settings)


def _address_flags(spec: EngineSpec) -> Iterator[str]:
    """A Unix socket in a folder of mode 0700 needs no key; a network address demands it on every path."""
    if spec.address.startswith(http.UNIX_PREFIX):
        yield from ("--uds", spec.address.removeprefix(http.UNIX_PREFIX))
        return
    parts = urlsplit(spec.address)
    yield from ("--host", str(parts.hostname), "--port", str(parts.port), "--middleware", KEY_GATE)


def _speculative_flags(spec: EngineSpec, settings: EngineSettings) -> Iterator[str]:
    if not settings.speculative_method:
        return
    config: dict[str, object] = {"method": settings.speculative_method}
    config["num_speculative_tokens"] = settings.speculative_tokens or 3
    if settings.prompt_lookup_min:
        config["prompt_lookup_min"] = settings.prompt_lookup_min
    if settings.prompt_lookup_max:
        config["prompt_lookup_max"] = settings.prompt_lookup_max
    if spec.draft_model_path:
        config["model"] = spec.draft_model_path
    yield from ("--speculative-config", json.dumps(config))


def _platform_flags(spec: EngineSpec, settings: EngineSettings) -> Iterator[str]:
    if settings.tensor_parallel_size > 1:
        yield from ("--tensor-parallel-size", str(settings.tensor_parallel_size))
    if settings.pipeline_parallel_size > 1:
        yield from ("--pipeline-parallel-size", str(settings.pipeline_parallel_size))
    if spec.runtime.platform == "cpu":
        if settings.tensor_parallel_size * settings.pipeline_parallel_size == 1:
            yield from ("--distributed-executor-backend", "uni")
        return
    yield from ("--gpu-memory-utilization", str(settings.gpu_memory_utilization))
    if settings.kv_offload_bytes:
        yield from ("--kv-offloading-size", str(settings.kv_offload_bytes / GIB))


def _fork_env(spec: EngineSpec, settings: EngineSettings) -> dict[str, str]:
    runtime = spec.runtime
    env = {
        **_COMMON_ENV,
        "PATH": f"{Path(runtime.interpreter).parent}:{SYSTEM_PATH}",
        # A folder of the runtime: nothing lands in a person's home.
        "HOME": f"{Path(spec.compile_dir).parent}/home",
        "SLUICE_ENGINE_FORK": "1",
    }
    if runtime.pythonpath:
        env["PYTHONPATH"] = ":".join(runtime.pythonpath)
    if runtime.platform == "cpu":
        threads = str(settings.cpu_threads or 1)
        env |= {"OMP_NUM_THREADS": threads, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        # Compiling on first use costs 10 s amid a request (first logprobs) and gains nothing here.
        env["TORCH_COMPILE_DISABLE"] = "1"
    return env


def _engine_env(spec: EngineSpec, settings: EngineSettings) -> dict[str, str]:
    caches = spec.compile_dir
    env = {
        "VLLM_CACHE_ROOT": f"{caches}/vllm",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "CUDA_CACHE_PATH": f"{caches}/cuda",
        RING_VARIABLE: f"{spec.directory}/{FILE_NAME}",
    }
    # Sockets and temporary files go with the engine's folder; the default leaves some in /tmp at each start.
    if len(os.fsencode(spec.directory)) <= LONGEST_RPC_FOLDER_BYTES:
        env |= {"VLLM_RPC_BASE_PATH": spec.directory, "TMPDIR": spec.directory}
    if spec.device_uuids and spec.runtime.platform == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = ",".join(spec.device_uuids)
    if spec.internal_ports:
        env["VLLM_PORT"] = str(spec.internal_ports[0])
    return env
