"""Reads an engine's load from its Prometheus text. A name table bridges versions; what is absent is None."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pool.ports import EngineLoad

# Newest name first (FC-28). vLLM 0.32; older: up to 0.8 (gpu_cache_usage_perc), counters without `_total`.
NAMES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "generation_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "finished_requests": ("vllm:request_success_total", "vllm:request_success"),
    "cache_queries_tokens": (
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries",
    ),
    "cache_hits_tokens": (
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ),
}


def read_load(text: str) -> EngineLoad:
    """Sums over engines and reasons. NaN and infinite values count as absent."""
    sums = _sum_series(text)
    found = {
        field: next((sums[name] for name in names if name in sums), None) for field, names in NAMES.items()
    }
    running, waiting = found["running"], found["waiting"]
    return EngineLoad(
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
        kv_usage_ratio=found["kv_usage_ratio"],
        generation_tokens=found["generation_tokens"],
        prompt_tokens=found["prompt_tokens"],
        finished_requests=found["finished_requests"],
        cache_queries_tokens=found["cache_queries_tokens"],
        cache_hits_tokens=found["cache_hits_tokens"],
    )


def _sum_series(text: str) -> dict[str, float]:
    wanted = {name for names in NAMES.values() for name in names}
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name not in wanted:
            continue
        try:
            value = float(line.rsplit(" ", 1)[1])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            sums[name] = sums.get(name, 0.0) + value
    return sums
