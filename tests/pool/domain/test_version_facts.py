from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.config_fields import BadModelConfig
from pool.domain.version_facts import (
    CacheKind,
    ModelFacts,
    TensorTotals,
    facts_from_json,
    facts_to_json,
    read_facts,
)

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
    "tie_word_embeddings": True,
}
DEEPSEEK_V3 = {**SMOLLM2, "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def facts_of(config: dict[str, Any], **other_files: dict[str, Any]) -> ModelFacts:
    files = {f"{name}.json": json.dumps(content).encode() for name, content in other_files.items()}
    return read_facts({"config.json": json.dumps(config).encode(), **files})


def test_facts_of_smollm2() -> None:
    facts = facts_of(SMOLLM2)

    assert (facts.layers, facts.heads, facts.kv_heads, facts.head_size) == (30, 9, 3, 64)
    assert (facts.context_tokens, facts.dtype, facts.vocab_size) == (8192, "bfloat16", 49152)
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.cache_kind is CacheKind.FULL
    assert facts.parameters == 134_515_008
    assert not facts.parameters_exact


def test_missing_kv_heads_mean_one_per_head() -> None:
    assert facts_of({**SMOLLM2, "num_key_value_heads": None}).kv_heads == 9


def test_names_of_older_architectures_are_read() -> None:
    config = {"n_head": 12, "n_embd": 768, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024}

    facts = facts_of(config)

    assert (facts.layers, facts.head_size, facts.context_tokens, facts.dtype) == (12, 64, 1024, "float32")
    assert facts.parameters is None
    assert facts.architecture == ""


@pytest.mark.parametrize(("changes", "kv_heads"), [({}, 1), ({"new_decoder_architecture": True}, 3)])
def test_falcon_has_one_kv_head_in_its_old_layout(changes: dict[str, Any], kv_heads: int) -> None:
    assert facts_of({**SMOLLM2, "model_type": "falcon", "multi_query": True, **changes}).kv_heads == kv_heads


def test_mla_caches_one_latent_per_token() -> None:
    facts = facts_of(DEEPSEEK_V3)

    assert facts.cache_kind is CacheKind.MLA
    assert (facts.kv_heads, facts.head_size, facts.mla_kv_rank, facts.mla_rope_size) == (1, 576, 512, 64)
    assert facts.parameters is None


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 4096},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["linear_attention"]},
        {"is_encoder_decoder": True},
        {"index_topk": 2048},
        {"compress_ratios": [4, 128]},
        {"attention_chunk_size": 8192},
        {"num_kv_shared_layers": 15},
        {"mamba_d_state": 16},
        {"num_key_value_heads": [1, 2]},
        {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
    ],
)
def test_other_caches_are_unknown_and_say_why(changes: dict[str, Any]) -> None:
    facts = facts_of({**SMOLLM2, **changes})

    assert facts.cache_kind is CacheKind.UNKNOWN
    assert facts.cache_unknown_reason.split(":")[0] in changes


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": None},
        {"num_kv_shared_layers": 0},
        {"layer_types": ["full_attention"] * 30},
    ],
)
def test_fields_that_switch_another_cache_off_leave_it_known(changes: dict[str, Any]) -> None:
    assert facts_of({**SMOLLM2, **changes}).cache_kind is CacheKind.FULL


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 32768),
        ({"type": "linear"}, 8192),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
        ({"factor": 2.0}, 8192),
    ],
)
def test_rope_scaling_lengthens_the_context_as_in_the_engine(rope: dict[str, Any], context: int) -> None:
    assert facts_of({**SMOLLM2, "rope_scaling": rope}).context_tokens == context


@pytest.mark.parametrize(("limit", "context"), [(2048, 2048), (1e30, 8192), ("x", 8192), (0, 8192)])
def test_a_tokenizer_can_shorten_the_context(limit: object, context: int) -> None:
    assert facts_of(SMOLLM2, tokenizer_config={"model_max_length": limit}).context_tokens == context


def test_a_context_that_is_not_stated_is_unknown() -> None:
    config = {name: value for name, value in SMOLLM2.items() if name != "max_position_embeddings"}

    assert facts_of(config).context_tokens is None


@pytest.mark.parametrize(
    ("name", "dtype"), [("torch.float16", "float16"), ("half", "float16"), ("float", "float32")]
)
def test_dtype_names_are_unified(name: str, dtype: str) -> None:
    assert facts_of({**SMOLLM2, "dtype": name}).dtype == dtype


def test_the_text_part_of_a_multimodal_model_counts() -> None:
    facts = facts_of(
        {"architectures": ["Some"], "dtype": "bfloat16", "text_config": {**SMOLLM2, "dtype": None}}
    )

    assert (facts.layers, facts.architecture, facts.dtype) == (30, "Some", "bfloat16")


def test_quantization_and_the_kv_dtype_of_the_checkpoint_are_read() -> None:
    scheme = {"num_bits": 8, "type": "float"}
    packed = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}

    facts = facts_of({**SMOLLM2, "quantization_config": packed})

    assert (facts.quantization, facts.kv_cache_dtype) == ("compressed-tensors", "fp8")
    assert facts_of({**SMOLLM2, "quantization_config": {}}).quantization == "unknown"
    modelopt = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    assert facts_of({**SMOLLM2, "compression_config": modelopt}).kv_cache_dtype == "fp8"


def test_fc75_the_chat_template_is_present_or_not() -> None:
    config = {"config.json": json.dumps(SMOLLM2).encode()}

    assert not read_facts(config).has_chat_template
    assert read_facts(config, file_names=frozenset({"chat_template.jinja"})).has_chat_template
    assert facts_of(SMOLLM2, tokenizer_config={"chat_template": "{{ messages }}"}).has_chat_template


def test_a_generation_config_is_noted() -> None:
    config = {"config.json": json.dumps(SMOLLM2).encode()}

    assert read_facts(config, file_names=frozenset({"generation_config.json"})).has_generation_config


@pytest.mark.parametrize("file", ["config", "tokenizer_config", "processor_config", "text_config"])
def test_fc52_remote_code_is_seen_in_any_config(file: str) -> None:
    remote = {"auto_map": {"AutoConfig": "own.Own"}}

    if file == "config":
        facts = facts_of({**SMOLLM2, **remote})
    elif file == "text_config":
        facts = facts_of({"text_config": {**SMOLLM2, **remote}})
    else:
        facts = facts_of(SMOLLM2, **{file: remote})

    assert facts.has_remote_code
    assert not facts_of(SMOLLM2).has_remote_code


def test_file_headers_give_exact_counts() -> None:
    totals = TensorTotals(elements={"BF16": 100, "F32": 5}, total_bytes=220)

    facts = read_facts({"config.json": json.dumps(SMOLLM2).encode()}, tensors=totals)

    assert (facts.parameters, facts.parameters_exact, facts.weight_bytes) == (105, True, 220)
    assert facts.castable_elements == 105


def test_packed_weights_give_no_exact_count() -> None:
    totals = TensorTotals(elements={"BF16": 100, "I32": 50}, total_bytes=400)

    facts = read_facts({"config.json": json.dumps(SMOLLM2).encode()}, tensors=totals)

    assert (facts.parameters, facts.parameters_exact) == (134_515_008, False)


def test_a_mixture_of_experts_is_not_estimated() -> None:
    assert facts_of({**SMOLLM2, "num_local_experts": 8}).parameters is None


def test_facts_survive_storage_and_unknown_fields() -> None:
    facts = facts_of(DEEPSEEK_V3)
    stored = json.loads(json.dumps(facts_to_json(facts)))

    assert facts_from_json({**stored, "field_of_tomorrow": 1}) == facts


def test_a_missing_config_is_named() -> None:
    with pytest.raises(BadModelConfig, match=r"config\.json lacks num_attention_heads"):
        read_facts({})


@given(
    st.dictionaries(
        st.sampled_from([*SMOLLM2, "rope_scaling", "layer_types", "quantization_config", "kv_lora_rank"]),
        st.none()
        | st.booleans()
        | st.integers(-10, 10**25)
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.text(max_size=3), max_size=2)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        max_size=4,
    )
)
def test_hostile_configs_are_read_or_refused_by_name(changes: dict[str, Any]) -> None:
    with contextlib.suppress(BadModelConfig):
        facts = facts_of({**SMOLLM2, **changes})
        assert facts.layers >= 1
        assert facts.head_size >= 1
