from __future__ import annotations

from typing import Any

import pytest

from pool.domain.profile_rules import Target, find_conflicts, find_warnings, require_no_conflicts
from pool.domain.profiles import EngineSettings, ProfileConflicts
from pool.domain.starter_profiles import STARTER_PROFILES
from pool.domain.version_facts import ModelFacts

FACTS = ModelFacts(
    architecture="LlamaForCausalLM",
    model_type="llama",
    layers=4,
    heads=8,
    kv_heads=2,
    head_size=64,
    hidden_size=512,
    vocab_size=1000,
    context_tokens=8192,
)
AWQ = ModelFacts(**{**FACTS.__dict__, "quantization": "awq"})
CPU = Target(facts=FACTS, device="cpu")
A100 = Target(facts=FACTS, device="cuda", compute_capability=(8, 0))
V100 = Target(facts=FACTS, device="cuda", compute_capability=(7, 0))
H100 = Target(facts=FACTS, device="cuda", compute_capability=(9, 0))
PROBED = Target(
    facts=FACTS,
    device="cuda",
    quantizations=frozenset({"awq_marlin", "fp8"}),
    block_multiples=(64, 16),
    kv_cache_dtypes=frozenset({"auto", "fp8"}),
    speculative_methods=frozenset({"ngram"}),
)


def codes(target: Target | None, **settings: Any) -> list[str]:
    return [conflict.code for conflict in find_conflicts(EngineSettings(**settings), target)]


def warnings(target: Target | None, **settings: Any) -> list[str]:
    return [warning.code for warning in find_warnings(EngineSettings(**settings), target)]


@pytest.mark.parametrize(
    ("code", "target", "chosen"),
    [
        ("batched_tokens_below_seqs", None, {"max_num_batched_tokens": 100}),
        (
            "prompt_larger_than_step",
            None,
            {"max_num_batched_tokens": 512, "enable_chunked_prefill": False, "max_model_len": 1024},
        ),
        ("prompt_larger_than_step", H100, {"max_num_batched_tokens": 512, "enable_chunked_prefill": False}),
        ("block_size_multiple", None, {"block_size": 8}),
        ("block_size_multiple", CPU, {"block_size": 16}),
        ("block_size_multiple", PROBED, {"block_size": 24}),
        ("context_above_model", H100, {"max_model_len": 8193}),
        ("cpu_is_one_device", CPU, {"tensor_parallel_size": 2}),
        ("heads_not_divisible", H100, {"tensor_parallel_size": 3}),
        ("more_stages_than_layers", H100, {"pipeline_parallel_size": 5}),
        ("dtype_needs_newer_gpu", V100, {"dtype": "bfloat16"}),
        ("kv_cache_dtype_unsupported", CPU, {"kv_cache_dtype": "fp8_e5m2"}),
        ("kv_cache_dtype_unsupported", A100, {"kv_cache_dtype": "fp8"}),
        ("kv_cache_dtype_unsupported", PROBED, {"kv_cache_dtype": "fp8_e5m2"}),
        ("quantization_unsupported", PROBED, {"quantization": "modelopt"}),
        ("quantization_mismatch", Target(facts=AWQ), {"quantization": "fp8"}),
        ("speculation_incomplete", None, {"speculative_tokens": 3}),
        ("speculation_incomplete", None, {"speculative_method": "ngram"}),
        ("speculation_incomplete", None, {"speculative_method": "eagle", "speculative_tokens": 3}),
        (
            "speculation_incomplete",
            None,
            {"speculative_method": "ngram", "speculative_tokens": 3, "speculative_version": "v1"},
        ),
        ("speculation_unsupported", PROBED, {"speculative_method": "suffix", "speculative_tokens": 3}),
        (
            "lookup_range",
            None,
            {
                "speculative_method": "ngram",
                "speculative_tokens": 3,
                "prompt_lookup_min": 4,
                "prompt_lookup_max": 2,
            },
        ),
        ("offload_needs_gpu", CPU, {"kv_offload_bytes": 2**30}),
        ("warm_up_too_long", Target(lanes=7), {}),
    ],
)
def test_each_conflict_is_found_alone(code: str, target: Target | None, chosen: dict[str, Any]) -> None:
    assert codes(target, **chosen) == [code]


@pytest.mark.parametrize(
    ("target", "chosen"),
    [
        (None, {}),
        (None, {"max_num_batched_tokens": 512}),
        (H100, {"max_num_batched_tokens": 8192, "enable_chunked_prefill": False}),
        (Target(facts=None), {"max_num_batched_tokens": 512, "enable_chunked_prefill": False}),
        (CPU, {"block_size": 64}),
        (PROBED, {"block_size": 48}),
        (H100, {"max_model_len": 8192, "tensor_parallel_size": 4, "pipeline_parallel_size": 4}),
        (A100, {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"}),
        (H100, {"kv_cache_dtype": "fp8"}),
        (PROBED, {"kv_cache_dtype": "fp8"}),
        (Target(facts=AWQ, quantizations=frozenset({"awq_marlin"})), {"quantization": "awq_marlin"}),
        (PROBED, {"speculative_method": "ngram", "speculative_tokens": 3, "prompt_lookup_max": 3}),
        (None, {"speculative_method": "ngram", "speculative_tokens": 3, "prompt_lookup_min": 1}),
        (None, {"speculative_method": "draft_model", "speculative_tokens": 3, "speculative_version": "v1"}),
        (H100, {"kv_offload_bytes": 2**30}),
    ],
)
def test_settings_that_work_have_no_conflict(target: Target | None, chosen: dict[str, Any]) -> None:
    assert codes(target, **chosen) == []


def test_several_conflicts_are_told_together() -> None:
    wrong = {"block_size": 16, "tensor_parallel_size": 3, "max_model_len": 10_000}

    found = codes(CPU, **wrong)

    assert found == ["block_size_multiple", "context_above_model", "cpu_is_one_device", "heads_not_divisible"]


@pytest.mark.parametrize(
    ("code", "target", "chosen"),
    [
        ("fp8_weight_only", A100, {"quantization": "fp8"}),
        ("four_bit_on_cpu", Target(facts=AWQ, device="cpu"), {"kv_cache_memory_bytes": 2**28}),
        ("takes_host_memory", CPU, {}),
        ("forced_block_size", H100, {"block_size": 16}),
    ],
)
def test_each_warning_is_found_alone(code: str, target: Target, chosen: dict[str, Any]) -> None:
    assert warnings(target, **chosen) == [code]


def test_settings_as_meant_have_no_warning() -> None:
    assert warnings(None) == []
    assert warnings(H100, quantization="fp8") == []


def test_conflicts_can_be_required_away() -> None:
    require_no_conflicts(EngineSettings())

    with pytest.raises(ProfileConflicts, match="at least max_num_seqs"):
        require_no_conflicts(EngineSettings(max_num_batched_tokens=1))


@pytest.mark.parametrize("name", STARTER_PROFILES)
def test_starter_profiles_have_no_conflict(name: str) -> None:
    target = CPU if name.startswith("cpu") else H100

    assert find_conflicts(STARTER_PROFILES[name], target) == ()
