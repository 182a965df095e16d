"""Facts of a model version from its config files. The files are foreign: every field is checked, none is
echoed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from pool.domain.config_fields import ConfigFields, parse_object

MAX_CONTEXT_TOKENS = 2**30
_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
)
_SCALED_ALREADY = {"default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
"""Rope types whose factor does not lengthen the stated context (vLLM 0.32, config/model.py)."""
_MLA_MODEL_TYPES = {
    "axk1",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "kimi_k2",
    "longcat_flash",
    "pangu_ultra_moe",
}
"""Model types that vLLM 0.32 caches as one latent per token and that have no second cache beside it."""
_OTHER_CACHES = {
    "index_topk": "a sparse-attention index is cached beside the tokens",
    "compress_ratios": "the cache is compressed by layer",
    "attention_chunk_size": "some layers attend in chunks",
    "num_kv_shared_layers": "layers share their cache",
    "block_configs": "layers have different shapes",
    "cross_attention_layers": "the encoder has a cache of its own",
    "layers_block_type": "layers are of different kinds",
    "hybrid_override_pattern": "layers are of different kinds",
    "attn_layer_indices": "layers are of different kinds",
    "full_attn_idxs": "layers are of different kinds",
    "linear_attn_config": "some layers keep a state instead of a cache",
    "mamba_d_state": "some layers keep a state instead of a cache",
    "mamba_num_heads": "some layers keep a state instead of a cache",
    "ssm_state_size": "some layers keep a state instead of a cache",
    "state_size": "some layers keep a state instead of a cache",
    "conv_L_cache": "some layers keep a state instead of a cache",
    "rescale_every": "some layers keep a state instead of a cache",
}
_FULL_LAYERS = {"full_attention", "attention"}


class CacheKind(StrEnum):
    FULL = "full"
    """Every layer caches keys and values of every token."""
    MLA = "mla"
    """Every layer caches one latent per token."""
    UNKNOWN = "unknown"
    """Sliding window, hybrid, compressed: the engine's printed figure is taken, nothing is computed."""


@dataclass(frozen=True, kw_only=True)
class TensorTotals:
    """Sums over the headers of all safetensors files: dtype tag (`BF16`, `F8_E4M3`, `I32`) → elements.

    No elements: weights in a format without a header; only their size is known.
    """

    elements: Mapping[str, int]
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What memory, placement, profiles and pages need to know of a version."""

    architecture: str
    model_type: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    """With MLA: latent rank + rope size, the width of what is cached per token and layer."""
    hidden_size: int
    vocab_size: int
    context_tokens: int | None = None
    """None: the config states none (vLLM then assumes 2,048)."""
    dtype: str = "float32"
    mla_kv_rank: int | None = None
    mla_rope_size: int | None = None
    cache_kind: CacheKind = CacheKind.FULL
    cache_unknown_reason: str = ""
    intermediate_size: int | None = None
    tied_embeddings: bool = False
    parameters: int | None = None
    """None: neither in the file headers nor to be estimated from the config."""
    parameters_exact: bool = False
    castable_elements: int | None = None
    """Elements that follow the engine's dtype; the other weights keep their stored width."""
    weight_bytes: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    """KV dtype that the checkpoint itself asks for; None: it follows the engine's dtype."""
    has_chat_template: bool = False
    has_generation_config: bool = False
    has_remote_code: bool = False
    """A config names `auto_map`: loading it runs code out of the model's folder, where that is allowed."""


def read_facts(
    files: Mapping[str, bytes],
    *,
    file_names: frozenset[str] = frozenset(),
    tensors: TensorTotals | None = None,
) -> ModelFacts:
    """`files`: the small JSON files by name, config.json among them; `file_names`: all names in the folder.

    Raises BadModelConfig, which names file and field.
    """
    configs = {name: ConfigFields(name, parse_object(name, content)) for name, content in files.items()}
    config = configs.get("config.json", ConfigFields("config.json", {}))
    tokenizer = configs.get("tokenizer_config.json", ConfigFields("tokenizer_config.json", {}))
    text = config.nested("text_config") or config
    facts = ModelFacts(
        architecture=(config.words("architectures") or [""])[0],
        model_type=config.word("model_type"),
        **_shape(text),
        **_cache(text),
        context_tokens=_context(text, tokenizer),
        dtype=_dtype(config, text),
        tied_embeddings=text.flag("tie_word_embeddings"),
        **_quantization(config),
        has_chat_template="chat_template.jinja" in file_names or tokenizer.has("chat_template"),
        has_generation_config="generation_config.json" in file_names,
        has_remote_code=any(found.has("auto_map") for found in (*configs.values(), text)),
    )
    experts = text.has("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return _with_sizes(facts, tensors, experts=experts)


def facts_to_json(facts: ModelFacts) -> dict[str, Any]:
    return asdict(facts)


def facts_from_json(stored: Mapping[str, Any]) -> ModelFacts:
    """Fields of other product versions are left out; new ones take their defaults."""
    known = {field.name for field in fields(ModelFacts)}
    values = {name: value for name, value in stored.items() if name in known}
    values["cache_kind"] = CacheKind(values.get("cache_kind", CacheKind.FULL))
    return ModelFacts(**values)


def _shape(text: ConfigFields) -> dict[str, Any]:
    heads = text.whole("num_attention_heads", "n_head", high=2**16)
    hidden_size = text.whole("hidden_size", "n_embd", "d_model", high=2**22)
    return {
        "layers": text.whole("num_hidden_layers", "n_layer", "num_layers", high=2**14),
        "heads": heads,
        "kv_heads": _kv_heads(text, heads),
        "head_size": text.find_whole("head_dim", "hidden_size_per_head", high=2**20)
        or max(1, hidden_size // heads),
        "hidden_size": hidden_size,
        "vocab_size": text.whole("vocab_size", high=2**28),
        "intermediate_size": text.find_whole("intermediate_size", "n_inner", "ffn_dim", high=2**24),
    }


def _kv_heads(text: ConfigFields, heads: int) -> int:
    if text.word("model_type") in {"falcon", "RefinedWeb", "RefinedWebModel"}:
        new_layout = text.flag("new_decoder_architecture")
        if text.flag("multi_query") and not new_layout:
            return 1
    if isinstance(text.raw("num_key_value_heads"), list):
        return heads  # differs by layer: the cache kind is unknown then, and this figure unused
    names = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
    return text.find_whole(*names, high=2**16) or heads


def _cache(text: ConfigFields) -> dict[str, Any]:
    reason = _unknown_cache_reason(text)
    if reason:
        return {"cache_kind": CacheKind.UNKNOWN, "cache_unknown_reason": reason}
    if not text.has("kv_lora_rank"):
        return {}
    rank = text.whole("kv_lora_rank", high=2**20)
    rope = text.whole("qk_rope_head_dim", high=2**20)
    return {"cache_kind": CacheKind.MLA, "mla_kv_rank": rank, "mla_rope_size": rope}


def _unknown_cache_reason(text: ConfigFields) -> str:
    for name, reason in _OTHER_CACHES.items():
        if text.has(name) and text.raw(name) not in ([], {}, 0):
            return f"{name}: {reason}"
    if text.flag("is_encoder_decoder"):
        return "is_encoder_decoder: the encoder has a cache of its own"
    if text.has("sliding_window") and text.flag("use_sliding_window", default=True):
        return "sliding_window: some layers keep a window only"
    other_layers = sorted(set(text.words("layer_types")) - _FULL_LAYERS)
    if other_layers:
        return "layer_types: layers are of different kinds"
    if isinstance(text.raw("num_key_value_heads"), list):
        return "num_key_value_heads: layers have different shapes"
    if text.has("kv_lora_rank") and text.word("model_type") not in _MLA_MODEL_TYPES:
        return "kv_lora_rank: the engine may not cache this model type as a latent"
    return ""


def _context(text: ConfigFields, tokenizer: ConfigFields) -> int | None:
    stated = [text.find_whole(name, high=MAX_CONTEXT_TOKENS) for name in _CONTEXT_FIELDS]
    known = [tokens for tokens in stated if tokens is not None]
    limit = tokenizer.raw("model_max_length")
    # Tokenizers state "no limit" as 1e30; that is no figure of the model.
    if known and isinstance(limit, int | float) and 1 <= limit < min(known):
        known.append(int(limit))
    return int(min(known) * _rope_factor(text)) if known else None


def _rope_factor(text: ConfigFields) -> float:
    rope = text.nested("rope_scaling") or text.nested("rope_parameters")
    if rope is None or rope.word("rope_type", "type") in _SCALED_ALREADY | {""}:
        return 1.0
    return rope.find_number("factor") or 1.0


def _dtype(config: ConfigFields, text: ConfigFields) -> str:
    name = text.word("dtype", "torch_dtype") or config.word("dtype", "torch_dtype")
    name = name.removeprefix("torch.")
    return {"float": "float32", "half": "float16", "": "float32"}.get(name, name)


def _quantization(config: ConfigFields) -> dict[str, Any]:
    found = config.nested("quantization_config") or config.nested("compression_config")
    if found is None:
        return {}
    scheme = found.nested("kv_cache_scheme")
    has_fp8_cache = scheme is not None and scheme.raw("num_bits") == 8 and scheme.raw("type") == "float"
    return {
        "quantization": found.word("quant_method", "quant_algo") or "unknown",
        "kv_cache_dtype": "fp8" if has_fp8_cache or found.word("kv_cache_quant_algo") == "FP8" else None,
    }


def _with_sizes(facts: ModelFacts, tensors: TensorTotals | None, *, experts: bool) -> ModelFacts:
    values = {**facts.__dict__}
    if facts.cache_kind is CacheKind.MLA:
        values["head_size"] = (facts.mla_kv_rank or 0) + (facts.mla_rope_size or 0)
        values["kv_heads"] = 1
    if tensors is None:
        simple = facts.cache_kind is not CacheKind.MLA and not experts
        values["parameters"] = estimate_parameters(facts) if simple else None
        return ModelFacts(**values)
    values["weight_bytes"] = tensors.total_bytes
    floats = sum(tensors.elements.get(tag, 0) for tag in ("F32", "BF16", "F16"))
    if tensors.elements:
        values["castable_elements"] = floats
    # Quantized formats pack several parameters into an element: the count of elements is none of parameters.
    values["parameters_exact"] = floats > 0 and floats == sum(tensors.elements.values())
    values["parameters"] = floats if values["parameters_exact"] else estimate_parameters(facts)
    return ModelFacts(**values)


def estimate_parameters(facts: ModelFacts) -> int | None:
    """For dense models with a gated feed-forward block, which nearly all are; None where its width is
    unknown."""
    if facts.intermediate_size is None:
        return None
    embeddings = facts.vocab_size * facts.hidden_size * (1 if facts.tied_embeddings else 2)
    attention = facts.hidden_size * facts.head_size * 2 * (facts.heads + facts.kv_heads)
    norms = 2 * facts.hidden_size
    per_layer = attention + 3 * facts.hidden_size * facts.intermediate_size + norms
    return embeddings + facts.layers * per_layer + facts.hidden_size
