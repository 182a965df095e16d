"""How a model's weights and KV cache lie on each device. Predictions are without any reserve; that is
fit.py's.

Formulas: vLLM 0.32 (v1/kv_cache_interface.py, v1/core/kv_cache_utils.py, platforms/cpu.py), read 2026-11 and
compared with the figures that a real engine prints (tests/engine/test_memory_prediction.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pool.domain.profiles import EngineSettings
from pool.domain.version_facts import CacheKind, ModelFacts

MIB = 2**20
GIB = 2**30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

ASSUMED_CONTEXT_TOKENS = 2048
"""What vLLM takes where the config states no context."""
_BLOCK_TOKENS = {("cpu", CacheKind.FULL): 128, ("cpu", CacheKind.MLA): 16}
_CUDA_BLOCK_TOKENS = {CacheKind.FULL: 16, CacheKind.MLA: 64}
_LARGE_DEVICE_BYTES = 70 * GIB
_BATCHED_TOKENS = {True: 8192, False: 2048}
"""vLLM's default tokens per step, on devices from 70 GiB on and below."""

CPU_PROCESS_BYTES = 1 * GIB
"""API server and engine core without weights and cache: 453 + 483 MB PSS measured, rounded up."""
CUDA_CONTEXT_BYTES = 600 * MIB
"""Estimate: CUDA context, cuBLAS workspaces and kernels of one process."""
NCCL_BYTES = 500 * MIB
"""Estimate: buffers of one rank that talks to others."""
GRAPH_BYTES_PER_LAYER = 16 * MIB
"""Estimate for the default capture sizes (up to 512 tokens)."""
LOGIT_BYTES = 18
"""Per logit at the sampler's peak: two copies (model dtype, float32), sorted values and 8-byte indices."""
_DRAFTING_METHODS = {"draft_model", "eagle", "eagle3", "mtp"}

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device of those that a replica takes; all of them are alike."""

    kind: DeviceKind
    total_bytes: int


@dataclass(frozen=True)
class Unknown:
    """It cannot be computed; the engine's printed figure is to be taken."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class KvPlan:
    """The KV cache of each device of a replica."""

    block_tokens: int
    bytes_per_token: int
    budget_bytes: int
    context_tokens: int
    budget_is_estimate: bool
    """False where the profile fixes the size: the figures are then exact."""

    @property
    def bytes_per_block(self) -> int:
        return self.block_tokens * self.bytes_per_token

    @property
    def blocks(self) -> int:
        return max(0, self.budget_bytes // self.bytes_per_block)

    @property
    def printed_tokens(self) -> int:
        """What the engine prints at its start: requests of full context that fit, times the context."""
        blocks_per_request = math.ceil(self.context_tokens / self.block_tokens)
        return int(self.blocks / blocks_per_request * self.context_tokens)

    @property
    def usable_tokens(self) -> int:
        """One block is never given out: the engine keeps it as the null block."""
        return max(0, self.blocks - 1) * self.block_tokens

    @property
    def engine_accepts(self) -> bool:
        """Whether the engine starts: one request of full context must fit into the usable blocks."""
        return self.context_tokens <= self.usable_tokens

    def bytes_of(self, tokens: int) -> int:
        return math.ceil(tokens / self.block_tokens) * self.bytes_per_block


def engine_dtype(facts: ModelFacts, settings: EngineSettings) -> str:
    """`auto` keeps the checkpoint's dtype, but float32 becomes bfloat16 as in the engine."""
    if settings.dtype != "auto":
        return settings.dtype
    return facts.dtype if facts.dtype in {"bfloat16", "float16"} else "bfloat16"


def kv_dtype(facts: ModelFacts, settings: EngineSettings) -> str:
    if settings.kv_cache_dtype != "auto":
        return settings.kv_cache_dtype
    return facts.kv_cache_dtype or engine_dtype(facts, settings)


def kv_bytes_per_token(facts: ModelFacts, settings: EngineSettings) -> int | Unknown:
    """On each device. KV heads are split among the ranks, but each rank keeps at least one; MLA is not
    split."""
    if facts.cache_kind is CacheKind.UNKNOWN:
        return Unknown(facts.cache_unknown_reason)
    if settings.speculative_method in _DRAFTING_METHODS:
        return Unknown(
            f"speculative decoding by {settings.speculative_method} caches for its draft layers too"
        )
    layers = math.ceil(facts.layers / settings.pipeline_parallel_size)
    width = DTYPE_BYTES[kv_dtype(facts, settings)]
    if facts.cache_kind is CacheKind.MLA:
        return layers * facts.head_size * width
    kv_heads = max(1, facts.kv_heads // settings.tensor_parallel_size)
    return 2 * layers * kv_heads * facts.head_size * width


def block_tokens(facts: ModelFacts, settings: EngineSettings, *, kind: DeviceKind) -> int:
    """The usual choice of the attention backend where the profile leaves it open."""
    if kind == "cpu" and facts.cache_kind is CacheKind.MLA:
        return _BLOCK_TOKENS["cpu", CacheKind.MLA]  # the engine overrides a setting here
    if settings.block_size is not None:
        return settings.block_size
    if kind == "cpu":
        return _BLOCK_TOKENS["cpu", CacheKind.FULL]
    return _CUDA_BLOCK_TOKENS.get(facts.cache_kind, 16)


def weight_bytes_per_device(facts: ModelFacts, settings: EngineSettings) -> int | Unknown:
    """The largest share of any device. Embeddings, projections and experts are split; small norms are not
    worth it."""
    total = _weight_bytes(facts, settings)
    if total is None:
        return Unknown("neither the size of the files nor the number of parameters is known")
    split = math.ceil(total / settings.devices)
    return split + _replicated_projection_bytes(facts, settings)


def _weight_bytes(facts: ModelFacts, settings: EngineSettings) -> int | None:
    width = DTYPE_BYTES[engine_dtype(facts, settings)]
    total: int | None = None
    if facts.weight_bytes is not None:
        stored_width = DTYPE_BYTES.get(facts.dtype, 2)
        total = facts.weight_bytes + (facts.castable_elements or 0) * (width - stored_width)
    elif facts.parameters is not None:
        total = facts.parameters * width
    if total is None or facts.quantization or not settings.quantization:
        return total
    return _quantized_while_loading(facts, total, width)


def _quantized_while_loading(facts: ModelFacts, total: int, width: int) -> int:
    """8 bits for the linear layers; embeddings and head keep the engine's dtype."""
    kept = facts.vocab_size * facts.hidden_size * width * (1 if facts.tied_embeddings else 2)
    kept = min(kept, total)
    return kept + math.ceil((total - kept) / width)


def _replicated_projection_bytes(facts: ModelFacts, settings: EngineSettings) -> int:
    """With more ranks than KV heads, each rank still holds the projections of one whole head."""
    ranks = settings.tensor_parallel_size
    if facts.cache_kind is not CacheKind.FULL or ranks <= facts.kv_heads:
        return 0
    layers = math.ceil(facts.layers / settings.pipeline_parallel_size)
    per_head = 2 * facts.hidden_size * facts.head_size * DTYPE_BYTES[engine_dtype(facts, settings)]
    return math.ceil(layers * per_head * (1 - facts.kv_heads / ranks))


def context_of(facts: ModelFacts, settings: EngineSettings) -> int:
    return settings.max_model_len or facts.context_tokens or ASSUMED_CONTEXT_TOKENS


def predict_kv(facts: ModelFacts, settings: EngineSettings, *, device: Device) -> KvPlan | Unknown:
    bytes_per_token = kv_bytes_per_token(facts, settings)
    if isinstance(bytes_per_token, Unknown):
        return bytes_per_token
    budget = kv_budget_bytes(facts, settings, device=device)
    if isinstance(budget, Unknown):
        return budget
    return KvPlan(
        block_tokens=block_tokens(facts, settings, kind=device.kind),
        bytes_per_token=bytes_per_token,
        budget_bytes=budget,
        context_tokens=context_of(facts, settings),
        budget_is_estimate=settings.kv_cache_memory_bytes is None,
    )


def kv_budget_bytes(facts: ModelFacts, settings: EngineSettings, *, device: Device) -> int | Unknown:
    """Bytes left for the cache on each device: fixed by the profile, or the engine's share less all else."""
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    weights = weight_bytes_per_device(facts, settings)
    if isinstance(weights, Unknown):
        return weights
    share = math.ceil(device.total_bytes * settings.gpu_memory_utilization)
    return max(0, share - weights - overhead_bytes(facts, settings, device=device))


def overhead_bytes(facts: ModelFacts, settings: EngineSettings, *, device: Device) -> int:
    """Beside weights and cache. On a GPU an estimate: the engine measures it by a trial step at its start."""
    if device.kind == "cpu":
        return CPU_PROCESS_BYTES
    nccl = NCCL_BYTES if settings.devices > 1 else 0
    layers = math.ceil(facts.layers / settings.pipeline_parallel_size)
    graphs = 0 if settings.enforce_eager else GRAPH_BYTES_PER_LAYER * layers
    return CUDA_CONTEXT_BYTES + nccl + graphs + _activation_bytes(facts, settings, device=device)


def _activation_bytes(facts: ModelFacts, settings: EngineSettings, *, device: Device) -> int:
    """Peak of one step of the largest size: residual, the feed-forward block, the logits of all slots."""
    tokens = settings.max_num_batched_tokens or _BATCHED_TOKENS[device.total_bytes >= _LARGE_DEVICE_BYTES]
    intermediate = facts.intermediate_size or 4 * facts.hidden_size
    ranks = settings.tensor_parallel_size
    width = DTYPE_BYTES[engine_dtype(facts, settings)]
    step = tokens * (2 * facts.hidden_size + math.ceil(3 * intermediate / ranks)) * width
    return step + min(settings.max_num_seqs, tokens) * facts.vocab_size * LOGIT_BYTES
