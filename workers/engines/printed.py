"""What vLLM prints at its start: figures and the stage that it is in. Lines of vLLM 0.32, CPU and CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable

from pool.ports import PrintedFigures

GIB = 2**30

_FIGURES: tuple[tuple[str, str, Callable[[str], float | int | str]], ...] = (
    ("kv_cache_tokens", r"KV cache size: ([\d,]+) tokens", lambda text: int(text.replace(",", ""))),
    ("max_concurrency", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", float),
    ("max_model_len", r"Using max model len (\d+)", int),
    ("kv_cache_bytes", r"Available KV cache memory: ([\d.]+) GiB", lambda text: round(float(text) * GIB)),
    (
        "kv_cache_bytes",
        r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV",
        lambda t: round(float(t) * GIB),
    ),
    ("model_memory_bytes", r"Model loading took ([\d.]+) GiB", lambda text: round(float(text) * GIB)),
    ("load_s", r"Loading weights took ([\d.]+) seconds", float),
    ("init_s", r"init engine \([^)]*\) took ([\d.]+) s", float),
    ("compile_s", r"torch\.compile (?:takes|took) ([\d.]+) s", float),
    ("dtype", r"dtype=torch\.(\w+)", str),
    ("attention_backend", r"Using (\w+) attention backend", str),
)
# In the order of a start; the last one that was printed is the stage.
_STAGES: tuple[tuple[str, str], ...] = (
    ("importing", r"non-default args"),
    ("configuring", r"Resolved architecture"),
    ("starting core", r"Initializing a V1 LLM engine"),
    ("loading weights", r"Starting to load model"),
    ("profiling", r"Loading weights took"),
    ("compiling", r"Dynamo bytecode|torch\.compile|Warming up model for the compilation"),
    ("capturing graphs", r"Capturing CUDA graph"),
    ("starting server", r"init engine \("),
    ("serving", r"Application startup complete"),
)
_SHARDS = re.compile(r"checkpoint shards:\s+(\d+)% Completed")


def read_figures(log_text: str) -> PrintedFigures:
    """Each figure as printed first; absent ones are None."""
    found: dict[str, float | int | str] = {}
    for name, pattern, convert in _FIGURES:
        match = re.search(pattern, log_text)
        if match and name not in found:
            found[name] = convert(match.group(1))
    return PrintedFigures(**found)  # type: ignore[arg-type]


def read_stage(log_text: str) -> str:
    """The stage of the start in words, with the share of weights that is loaded; `importing` at first."""
    stage = "importing"
    for words, pattern in _STAGES:
        if re.search(pattern, log_text):
            stage = words
    shards = _SHARDS.findall(log_text)
    if stage == "loading weights" and shards:
        return f"{stage} {shards[-1]} %"
    return stage
