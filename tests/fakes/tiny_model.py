"""Makes small Hugging Face model folders of chosen shapes, with random weights. No torch, no numpy."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# 2 ** 12 random values are drawn once and repeated with shifting offsets: fast, and no two rows are equal.
POOL_VALUES = 4093
WEIGHT_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a tiny model. `kv_lora_rank` set makes it a DeepSeek-like model with MLA."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 128
    vocab: int = 512
    max_positions: int = 2048
    dtype: str = "bfloat16"
    kv_lora_rank: int | None = None
    rope_head_dim: int = 64


def make_tiny_model(
    folder: Path,
    shape: Shape | None = None,
    *,
    chat_template: bool = True,
    seed: int = 0,
    auto_map: bool = False,
) -> Path:
    """Writes config, weights and tokenizer into `folder` and returns it."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    config = _mla_config(shape) if shape.kv_lora_rank else _llama_config(shape)
    if auto_map:
        config["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig"}
        (folder / "configuration_own.py").write_text("raise SystemExit('remote code ran')\n")
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 2})
    tensors = _mla_tensors(shape) if shape.kv_lora_rank else _llama_tensors(shape)
    write_safetensors(folder / "model.safetensors", tensors, dtype=shape.dtype, seed=seed)
    _write_tokenizer(folder, vocab=shape.vocab, chat_template=chat_template)
    return folder


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], *, dtype: str, seed: int = 0) -> None:
    """Random weights in the safetensors format; norms are ones."""
    width = {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    pool = _value_pool(dtype, seed)
    for number, (name, shape) in enumerate(sorted(shapes.items())):
        size = width * _product(shape)
        blob = _one_blob(dtype, size) if "norm" in name else _repeat(pool, size, start=number * 17 * width)
        tag = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[dtype]
        header[name] = {"dtype": tag, "shape": list(shape), "data_offsets": [offset, offset + size]}
        blobs.append(blob)
        offset += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def truncate_weights(folder: Path, *, keep_ratio: float = 0.5) -> Path:
    """Cuts the weights file of a tiny model, as a broken download leaves it."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep_ratio)])
    return path


def _llama_config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
        "torch_dtype": shape.dtype,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
    }


def _mla_config(shape: Shape) -> dict[str, Any]:
    return {
        **_llama_config(shape),
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": shape.heads,
        "kv_lora_rank": shape.kv_lora_rank,
        "q_lora_rank": None,
        "qk_nope_head_dim": shape.head_dim,
        "qk_rope_head_dim": shape.rope_head_dim,
        "v_head_dim": shape.head_dim,
        "head_dim": shape.rope_head_dim,
        "n_routed_experts": 2,
        "first_k_dense_replace": shape.layers,
        "moe_layer_freq": 1,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "tie_word_embeddings": False,
    }


def _llama_tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = _shared_tensors(shape)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}.self_attn"
        found[f"{prefix}.q_proj.weight"] = (shape.heads * shape.head_dim, shape.hidden)
        found[f"{prefix}.k_proj.weight"] = (shape.kv_heads * shape.head_dim, shape.hidden)
        found[f"{prefix}.v_proj.weight"] = (shape.kv_heads * shape.head_dim, shape.hidden)
        found[f"{prefix}.o_proj.weight"] = (shape.hidden, shape.heads * shape.head_dim)
    return found


def _mla_tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    rank = shape.kv_lora_rank or 0
    found: dict[str, tuple[int, ...]] = _shared_tensors(shape)
    found["lm_head.weight"] = (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}.self_attn"
        found[f"{prefix}.q_proj.weight"] = (
            shape.heads * (shape.head_dim + shape.rope_head_dim),
            shape.hidden,
        )
        found[f"{prefix}.kv_a_proj_with_mqa.weight"] = (rank + shape.rope_head_dim, shape.hidden)
        found[f"{prefix}.kv_a_layernorm.weight"] = (rank,)
        found[f"{prefix}.kv_b_proj.weight"] = (shape.heads * shape.head_dim * 2, rank)
        found[f"{prefix}.o_proj.weight"] = (shape.hidden, shape.heads * shape.head_dim)
    return found


def _shared_tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        found[f"{prefix}.input_layernorm.weight"] = (shape.hidden,)
        found[f"{prefix}.post_attention_layernorm.weight"] = (shape.hidden,)
        found[f"{prefix}.mlp.gate_proj.weight"] = (shape.intermediate, shape.hidden)
        found[f"{prefix}.mlp.up_proj.weight"] = (shape.intermediate, shape.hidden)
        found[f"{prefix}.mlp.down_proj.weight"] = (shape.hidden, shape.intermediate)
    return found


def _write_tokenizer(folder: Path, *, vocab: int, chat_template: bool) -> None:
    entries = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        entries[symbol] = len(entries)
    while len(entries) < vocab:
        entries[f"<extra_{len(entries)}>"] = len(entries)
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "model_max_length": 1 << 20,
    }
    if chat_template:
        settings["chat_template"] = CHAT_TEMPLATE
    _write_json(folder / "tokenizer_config.json", settings)


def _value_pool(dtype: str, seed: int) -> bytes:
    draw = random.Random(seed)
    return b"".join(_pack(dtype, draw.gauss(0.0, WEIGHT_SPREAD)) for _ in range(POOL_VALUES))


def _one_blob(dtype: str, size: int) -> bytes:
    return _repeat(_pack(dtype, 1.0), size, start=0)


def _pack(dtype: str, value: float) -> bytes:
    if dtype == "float32":
        return struct.pack("<f", value)
    if dtype == "float16":
        return struct.pack("<e", value)
    return struct.pack("<f", value)[2:]


def _repeat(pool: bytes, size: int, *, start: int) -> bytes:
    start %= len(pool)
    turned = pool[start:] + pool[:start]
    return (turned * (size // len(turned) + 1))[:size]


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))
