"""The affinity benchmark: its trace, its hidden caches, and that the shipped choice is good on ten minutes of it."""

import json
import random
from pathlib import Path

from bench._prefix_sim import EngineCache, Engines, run_blind
from bench._prefix_trace import Call, make_trace, read_trace
from bench.affinity import run_gateways


def call(*blocks: int, at_s: float = 0.0) -> Call:
    return Call(at_s, 512 * len(blocks) - 12, 100, blocks)


def test_a_trace_is_read_in_the_order_of_its_times(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]},
        {"timestamp": 0, "input_length": 500, "output_length": 9, "hash_ids": [0]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))

    assert read_trace(path) == [Call(0.0, 500, 9, (0,)), Call(3.0, 600, 7, (0, 1))]


def test_an_engine_serves_from_its_cache_and_evicts_the_oldest_end() -> None:
    cache = EngineCache(3)

    assert cache.use(call(1, 2)) == 0
    assert cache.use(call(1, 2)) == 1012
    assert cache.use(call(8, 9)) == 0
    assert cache.use(call(1, 2)) == 512


def test_engines_count_what_they_had_to_do() -> None:
    engines = Engines(2, 10)

    engines.serve(0, call(1, 2))
    served = engines.serve(0, call(1, 2, 3))

    assert served.cached_tokens == 1024
    assert engines.outcome.sent == [1012 + 100 + 500 + 100, 0]
    assert engines.outcome.max_mean_load == 2.0


def test_the_choice_comes_near_to_one_pooled_cache_with_even_load() -> None:
    calls = [one for one in make_trace(random.Random(2)) if one.at_s < 900.0]
    oracle = run_blind(calls, replicas=1, cache_blocks=32_000)
    in_turn = run_blind(calls, replicas=8, cache_blocks=4_000)

    ours = run_gateways(calls, 1)

    assert ours.cached_tokens >= 0.96 * oracle.cached_tokens
    assert ours.max_mean_load <= 1.05
    assert ours.window_load <= 1.05 * in_turn.window_load


def test_processes_that_share_notes_choose_as_well_as_one() -> None:
    calls = [one for one in make_trace(random.Random(3)) if one.at_s < 600.0]
    alone, several = run_gateways(calls, 1), run_gateways(calls, 4)

    assert several.cached_tokens >= 0.95 * alone.cached_tokens
