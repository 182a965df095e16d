from __future__ import annotations

import json
from pathlib import Path

import pytest

from pool.ports import PrintedFigures
from workers.engines.printed import read_figures, read_stage

LOGS: dict[str, list[str]] = json.loads((Path(__file__).parents[2] / "fakes" / "vllm_logs.json").read_text())


def test_figures_of_a_real_start_are_read() -> None:
    figures = read_figures("\n".join(LOGS["ok"]))

    assert figures.kv_cache_tokens == 131_072
    assert figures.max_concurrency == 128.0
    assert figures.max_model_len == 1024
    assert figures.load_s == 0.01
    assert figures.init_s == 0.05
    assert figures.dtype == "bfloat16"


def test_figures_of_a_cuda_start_are_read() -> None:
    log = (
        "INFO [gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 3.5 seconds\n"
        "INFO [gpu_worker.py:760] Available KV cache memory: 50.5 GiB\n"
        "INFO GPU KV cache size: 413,456 tokens, Maximum concurrency for 8,192 tokens per request: 50.47x\n"
    )

    figures = read_figures(log)

    assert figures.model_memory_bytes == round(14.99 * 2**30)
    assert figures.kv_cache_bytes == round(50.5 * 2**30)
    assert figures.kv_cache_tokens == 413_456


def test_what_is_not_printed_is_absent() -> None:
    assert read_figures("") == PrintedFigures()


@pytest.mark.parametrize(
    ("lines", "stage"),
    [
        (0, "importing"),
        (2, "configuring"),
        (4, "starting core"),
        (5, "loading weights"),
        (7, "loading weights 0 %"),
        (8, "loading weights 100 %"),
        (9, "profiling"),
        (13, "starting server"),
        (14, "serving"),
    ],
)
def test_the_stage_follows_the_log(lines: int, stage: str) -> None:
    assert read_stage("\n".join(LOGS["ok"][:lines])) == stage
