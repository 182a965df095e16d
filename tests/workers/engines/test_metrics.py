from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from pool.ports import EngineLoad
from workers.engines.metrics import NAMES, read_load

# What vLLM 0.32 wrote after two requests of 360 prompt and 8 output tokens; series that nobody reads are cut out.
PAGE = (Path(__file__).parent / "data" / "vllm_0_32_metrics.txt").read_text()

NEW = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 40.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
"""


def test_load_is_read_and_reasons_are_added() -> None:
    assert read_load(NEW) == EngineLoad(2, 5, 0.25, 100.0, 40.0, 7.0)


def test_fc_28_older_names_are_found() -> None:
    old = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:generation_tokens{model_name="m"} 9\n'

    load = read_load(old)

    assert (load.kv_usage_ratio, load.generation_tokens) == (0.5, 9.0)


def test_fc_28_the_prefix_cache_is_found_under_its_old_and_new_names() -> None:
    new = "vllm:prefix_cache_queries_total{} 90\nvllm:prefix_cache_hits_total{} 30\n"
    old = "vllm:gpu_prefix_cache_queries{} 9\nvllm:gpu_prefix_cache_hits{} 3\n"

    loads = [read_load(new), read_load(old), read_load(NEW)]

    assert [(load.cache_queries_tokens, load.cache_hits_tokens) for load in loads] == [
        (90, 30),
        (9, 3),
        (None, None),
    ]


def test_fc_29_what_is_missing_or_not_a_number_is_unknown() -> None:
    load = read_load('vllm:num_requests_running{m="x"} NaN\nvllm:num_requests_waiting{m="x"} +Inf\nbroken\n')

    assert load == EngineLoad(None, None, None, None, None, None)


def rename(page: str, **names: str) -> str:
    """As another version of the engine writes it: `kv_cache_usage_perc="gpu_cache_usage_perc"`."""
    for new, old in names.items():
        page = re.sub(rf"^vllm:{new}(?=[{{ ])", f"vllm:{old}", page, flags=re.MULTILINE)
    return page


BEFORE_0_9 = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "generation_tokens_total": "generation_tokens",
    "prompt_tokens_total": "prompt_tokens",
    "request_success_total": "request_success",
    "prefix_cache_queries_total": "gpu_prefix_cache_queries",
    "prefix_cache_hits_total": "gpu_prefix_cache_hits",
}


def test_fc_28_each_name_of_the_table_is_on_a_page_of_the_newest_engine() -> None:
    series = {line.split("{")[0] for line in PAGE.splitlines() if not line.startswith("#")}

    assert {names[0] for names in NAMES.values()} <= series
    assert read_load(PAGE) == EngineLoad(
        running=0,
        waiting=0,
        kv_usage_ratio=0.0,
        generation_tokens=16.0,
        prompt_tokens=720.0,
        finished_requests=2.0,
        cache_queries_tokens=720.0,
        cache_hits_tokens=256.0,
    )


def test_fc_28_two_versions_under_different_names_say_the_same() -> None:
    assert read_load(rename(PAGE, **BEFORE_0_9)) == read_load(PAGE)


@pytest.mark.parametrize("field", sorted(NAMES))
def test_fc_28_a_name_that_no_table_knows_makes_just_that_figure_unknown(field: str) -> None:
    newest = NAMES[field][0].removeprefix("vllm:")

    load = asdict(read_load(rename(PAGE, **{newest: f"{newest}_v9"})))

    assert [name for name, value in load.items() if value is None] == [field]
