from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.memory import (
    CPU_PROCESS_BYTES,
    CUDA_CONTEXT_BYTES,
    GIB,
    MIB,
    NCCL_BYTES,
    Device,
    KvPlan,
    Unknown,
    block_tokens,
    context_of,
    engine_dtype,
    kv_budget_bytes,
    kv_bytes_per_token,
    kv_dtype,
    overhead_bytes,
    predict_kv,
    weight_bytes_per_device,
)
from pool.domain.profiles import EngineSettings
from pool.domain.version_facts import CacheKind, ModelFacts

SMOLLM2 = ModelFacts(
    architecture="LlamaForCausalLM",
    model_type="llama",
    layers=30,
    heads=9,
    kv_heads=3,
    head_size=64,
    hidden_size=576,
    vocab_size=49152,
    context_tokens=8192,
    dtype="bfloat16",
    intermediate_size=1536,
    tied_embeddings=True,
    parameters=134_515_008,
    castable_elements=134_515_008,
    weight_bytes=269_030_016,
)
DEEPSEEK_V3 = replace(
    SMOLLM2, layers=61, kv_heads=1, head_size=576, cache_kind=CacheKind.MLA, mla_kv_rank=512, mla_rope_size=64
)
LLAMA_70B = replace(SMOLLM2, layers=80, heads=64, kv_heads=8, head_size=128, hidden_size=8192)
CPU = Device(kind="cpu", total_bytes=16 * GIB)
H100 = Device(kind="cuda", total_bytes=80 * GIB)
RTX = Device(kind="cuda", total_bytes=24 * GIB)


def plan_of(facts: ModelFacts, device: Device = CPU, **settings: Any) -> KvPlan:
    plan = predict_kv(facts, EngineSettings(**settings), device=device)
    assert isinstance(plan, KvPlan)
    return plan


@pytest.mark.parametrize(
    ("chosen", "tokens"),
    [
        ({"dtype": "float32", "kv_cache_memory_bytes": 256 * MIB}, 5_760),
        ({"kv_cache_memory_bytes": GIB}, 46_592),
        ({"dtype": "float32", "kv_cache_memory_bytes": GIB}, 23_296),
    ],
)
def test_the_tokens_that_the_engine_printed_for_smollm2(chosen: dict[str, Any], tokens: int) -> None:
    assert plan_of(SMOLLM2, **chosen).printed_tokens == tokens


@pytest.mark.parametrize(
    ("facts", "chosen", "expected"),
    [
        (SMOLLM2, {}, 23_040),
        (SMOLLM2, {"dtype": "float32"}, 46_080),
        (SMOLLM2, {"dtype": "float16"}, 23_040),
        (SMOLLM2, {"kv_cache_dtype": "fp8"}, 11_520),
        (SMOLLM2, {"kv_cache_dtype": "float16", "dtype": "float32"}, 23_040),
        (replace(SMOLLM2, kv_heads=9), {}, 69_120),
        (DEEPSEEK_V3, {}, 70_272),
        (DEEPSEEK_V3, {"kv_cache_dtype": "fp8_e4m3"}, 35_136),
        (DEEPSEEK_V3, {"tensor_parallel_size": 8}, 70_272),
        (LLAMA_70B, {}, 327_680),
        (LLAMA_70B, {"tensor_parallel_size": 8}, 40_960),
        (LLAMA_70B, {"tensor_parallel_size": 16}, 40_960),
        (LLAMA_70B, {"tensor_parallel_size": 4, "pipeline_parallel_size": 3}, 27_648),
    ],
)
def test_kv_bytes_per_token_on_each_device(facts: ModelFacts, chosen: dict[str, Any], expected: int) -> None:
    assert kv_bytes_per_token(facts, EngineSettings(**chosen)) == expected


def test_unknown_caches_are_not_guessed() -> None:
    unknown = replace(SMOLLM2, cache_kind=CacheKind.UNKNOWN, cache_unknown_reason="sliding_window: a window")

    plan = predict_kv(unknown, EngineSettings(), device=H100)

    assert plan == Unknown("sliding_window: a window")


def test_a_drafting_model_makes_the_cache_unknown() -> None:
    found = kv_bytes_per_token(SMOLLM2, EngineSettings(speculative_method="eagle", speculative_tokens=3))

    assert isinstance(found, Unknown)


@pytest.mark.parametrize(
    ("checkpoint", "wanted", "dtype"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float16"),
        ("float32", "auto", "bfloat16"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_the_engine_dtype_follows_the_checkpoint(checkpoint: str, wanted: str, dtype: str) -> None:
    assert engine_dtype(replace(SMOLLM2, dtype=checkpoint), EngineSettings(dtype=wanted)) == dtype


def test_the_kv_dtype_follows_profile_then_checkpoint_then_engine() -> None:
    packed = replace(SMOLLM2, kv_cache_dtype="fp8")

    assert kv_dtype(packed, EngineSettings()) == "fp8"
    assert kv_dtype(packed, EngineSettings(kv_cache_dtype="bfloat16")) == "bfloat16"
    assert kv_dtype(SMOLLM2, EngineSettings(dtype="float32")) == "float32"


@pytest.mark.parametrize(
    ("facts", "chosen", "kind", "tokens"),
    [
        (SMOLLM2, {}, "cpu", 128),
        (SMOLLM2, {"block_size": 64}, "cpu", 64),
        (DEEPSEEK_V3, {"block_size": 64}, "cpu", 16),
        (SMOLLM2, {}, "cuda", 16),
        (DEEPSEEK_V3, {}, "cuda", 64),
        (SMOLLM2, {"block_size": 32}, "cuda", 32),
    ],
)
def test_block_sizes(facts: ModelFacts, chosen: dict[str, Any], kind: Any, tokens: int) -> None:
    assert block_tokens(facts, EngineSettings(**chosen), kind=kind) == tokens


def test_the_printed_figure_counts_whole_requests() -> None:
    plan = KvPlan(
        block_tokens=128,
        bytes_per_token=1,
        budget_bytes=256 * 128,
        context_tokens=1500,
        budget_is_estimate=False,
    )

    assert plan.printed_tokens == 32_000
    assert plan.usable_tokens == 255 * 128


def test_the_engine_refuses_a_context_above_the_usable_blocks() -> None:
    settings: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": 256 * MIB}

    assert plan_of(SMOLLM2, max_model_len=5632, **settings).engine_accepts
    assert not plan_of(SMOLLM2, max_model_len=5633, **settings).engine_accepts


@pytest.mark.parametrize(
    ("facts", "chosen", "expected"),
    [
        (SMOLLM2, {}, 269_030_016),
        (SMOLLM2, {"dtype": "float32"}, 538_060_032),
        (replace(SMOLLM2, weight_bytes=None), {"dtype": "float32"}, 538_060_032),
        (replace(SMOLLM2, castable_elements=None), {"dtype": "float32"}, 269_030_016),
        (replace(SMOLLM2, heads=8, kv_heads=8), {"tensor_parallel_size": 2}, 134_515_008),
        (SMOLLM2, {"pipeline_parallel_size": 2}, 134_515_008),
        (replace(SMOLLM2, quantization="awq"), {"quantization": "awq"}, 269_030_016),
    ],
)
def test_weight_bytes_on_each_device(facts: ModelFacts, chosen: dict[str, Any], expected: int) -> None:
    assert weight_bytes_per_device(facts, EngineSettings(**chosen)) == expected


def test_more_ranks_than_kv_heads_keep_one_head_each() -> None:
    settings = EngineSettings(tensor_parallel_size=9)
    extra = 30 * 2 * 576 * 64 * 2 * (1 - 3 / 9)

    assert weight_bytes_per_device(SMOLLM2, settings) == pytest.approx(269_030_016 / 9 + extra, abs=2)


def test_weights_quantized_while_loading_keep_their_embeddings() -> None:
    embeddings = 49152 * 576 * 2
    settings = EngineSettings(quantization="fp8")

    tied = weight_bytes_per_device(SMOLLM2, settings)
    untied = weight_bytes_per_device(replace(SMOLLM2, tied_embeddings=False), settings)

    assert tied == embeddings + (269_030_016 - embeddings) // 2
    assert untied == 2 * embeddings + (269_030_016 - 2 * embeddings) // 2


def test_weights_of_unknown_size_are_unknown() -> None:
    nothing = replace(SMOLLM2, weight_bytes=None, parameters=None)

    assert isinstance(weight_bytes_per_device(nothing, EngineSettings()), Unknown)
    assert isinstance(predict_kv(nothing, EngineSettings(), device=H100), Unknown)
    assert isinstance(predict_kv(nothing, EngineSettings(kv_cache_memory_bytes=GIB), device=H100), KvPlan)


def test_the_budget_is_the_share_less_weights_and_overhead() -> None:
    settings = EngineSettings(gpu_memory_utilization=0.5)

    budget = kv_budget_bytes(SMOLLM2, settings, device=CPU)

    assert budget == 8 * GIB - 269_030_016 - CPU_PROCESS_BYTES
    assert plan_of(SMOLLM2, CPU).budget_is_estimate


def test_a_device_that_is_too_small_leaves_nothing() -> None:
    tiny = Device(kind="cuda", total_bytes=GIB)

    plan = plan_of(SMOLLM2, tiny)

    assert (plan.budget_bytes, plan.blocks, plan.printed_tokens, plan.usable_tokens) == (0, 0, 0, 0)


def test_the_overhead_of_a_gpu_grows_with_graphs_ranks_and_steps() -> None:
    def overhead(facts: ModelFacts = SMOLLM2, device: Device = H100, **settings: Any) -> int:
        return overhead_bytes(facts, EngineSettings(**settings), device=device)

    eager = overhead(enforce_eager=True)

    assert eager > CUDA_CONTEXT_BYTES
    assert overhead() == eager + 30 * 16 * MIB
    assert overhead(enforce_eager=True, tensor_parallel_size=3) < eager + NCCL_BYTES
    assert overhead(device=RTX) < overhead()
    assert overhead(max_num_batched_tokens=16384) > overhead()
    assert overhead(replace(SMOLLM2, intermediate_size=None)) > overhead()


def test_the_context_is_that_of_the_profile_then_the_model_then_the_engine() -> None:
    assert context_of(SMOLLM2, EngineSettings(max_model_len=100)) == 100
    assert context_of(SMOLLM2, EngineSettings()) == 8192
    assert context_of(replace(SMOLLM2, context_tokens=None), EngineSettings()) == 2048


@given(
    budget=st.integers(0, 2**36),
    block=st.sampled_from([16, 32, 64, 128]),
    per_token=st.integers(1, 2**20),
    context=st.integers(1, 2**20),
)
def test_a_plan_never_promises_more_than_its_budget(
    budget: int, block: int, per_token: int, context: int
) -> None:
    plan = KvPlan(
        block_tokens=block,
        bytes_per_token=per_token,
        budget_bytes=budget,
        context_tokens=context,
        budget_is_estimate=False,
    )

    assert plan.usable_tokens * per_token <= budget
    assert plan.blocks * plan.bytes_per_block <= budget
    assert plan.printed_tokens <= plan.blocks * block
    assert plan.bytes_of(context) >= context * per_token
