"""Which settings contradict each other, the model, the runtime or the device. Each rule is named: an API
shows all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pool.domain.profiles import Conflict, EngineSettings, ProfileConflicts
from pool.domain.version_facts import ModelFacts

MAX_WARM_UP = 50
"""Sequences of a warm-up in all; the time to first token levels off long before."""
NATIVE_FP8 = (8, 9)
"""Compute capability with FP8 arithmetic; below it FP8 is a storage format of weights only."""
NATIVE_BF16 = (8, 0)
_BLOCK_MULTIPLE = {"cuda": 16, "cpu": 32}
"""What the attention backends of vLLM 0.32 take; a runtime's own list, where probed, goes before it."""
_FOUR_BIT = {"awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin"}
_NEEDS_DRAFT = {"draft_model", "eagle", "eagle3"}

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the settings will run, as far as it is known; None: rules about it are left out."""

    facts: ModelFacts | None = None
    device: DeviceKind | None = None
    compute_capability: tuple[int, int] | None = None
    quantizations: frozenset[str] | None = None
    block_multiples: tuple[int, ...] = ()
    """A block size must be a multiple of one of these; empty: not probed."""
    kv_cache_dtypes: frozenset[str] | None = None
    speculative_methods: frozenset[str] | None = None
    lanes: int = 1


def find_conflicts(settings: EngineSettings, target: Target | None = None) -> tuple[Conflict, ...]:
    """Every rule that is broken; a start with any of them would fail, or not do what the settings say."""
    checked = target or Target()
    return tuple(conflict for rule in _CONFLICT_RULES for conflict in rule(settings, checked))


def find_warnings(settings: EngineSettings, target: Target | None = None) -> tuple[Conflict, ...]:
    """What works and is probably not meant."""
    checked = target or Target()
    return tuple(warning for rule in _WARNING_RULES for warning in rule(settings, checked))


def require_no_conflicts(settings: EngineSettings, target: Target | None = None) -> None:
    conflicts = find_conflicts(settings, target)
    if conflicts:
        raise ProfileConflicts(conflicts)


def _batches(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    batched = settings.max_num_batched_tokens
    if batched is None:
        return
    if batched < settings.max_num_seqs:
        yield Conflict(
            "batched_tokens_below_seqs",
            f"max_num_batched_tokens ({batched}) must be at least max_num_seqs ({settings.max_num_seqs}): "
            "each running request needs one token of a step.",
            ("max_num_batched_tokens", "max_num_seqs"),
        )
    context = settings.max_model_len or (target.facts.context_tokens if target.facts else None)
    if not settings.enable_chunked_prefill and context is not None and batched < context:
        yield Conflict(
            "prompt_larger_than_step",
            f"Without chunked prefill a prompt must fit into one step: max_num_batched_tokens ({batched}) "
            f"is below the context of {context} tokens.",
            ("max_num_batched_tokens", "enable_chunked_prefill", "max_model_len"),
        )


def _block_size(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    if settings.block_size is None:
        return
    multiples = target.block_multiples or (_BLOCK_MULTIPLE[target.device or "cuda"],)
    if any(settings.block_size % multiple == 0 for multiple in multiples):
        return
    listed = " or ".join(str(multiple) for multiple in multiples)
    yield Conflict(
        "block_size_multiple",
        f"block_size ({settings.block_size}) must be a multiple of {listed} here. "
        "Leave it empty to let the engine choose its fastest backend.",
        ("block_size",),
    )


def _context(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    if target.facts is None or target.facts.context_tokens is None or settings.max_model_len is None:
        return
    if settings.max_model_len > target.facts.context_tokens:
        yield Conflict(
            "context_above_model",
            f"max_model_len ({settings.max_model_len}) is above the model's context of "
            f"{target.facts.context_tokens} tokens.",
            ("max_model_len",),
        )


def _parallelism(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    if target.device == "cpu" and settings.devices > 1:
        yield Conflict(
            "cpu_is_one_device",
            "A CPU-only host has one device; tensor and pipeline parallelism must be 1.",
            ("tensor_parallel_size", "pipeline_parallel_size"),
        )
    facts, ranks = target.facts, settings.tensor_parallel_size
    if facts is None:
        return
    splits_kv = facts.kv_heads % ranks == 0 or ranks % facts.kv_heads == 0
    if facts.heads % ranks or not splits_kv:
        yield Conflict(
            "heads_not_divisible",
            f"tensor_parallel_size ({ranks}) must divide {facts.heads} heads, and divide or be a multiple "
            f"of {facts.kv_heads} KV heads.",
            ("tensor_parallel_size",),
        )
    if settings.pipeline_parallel_size > facts.layers:
        yield Conflict(
            "more_stages_than_layers",
            f"pipeline_parallel_size ({settings.pipeline_parallel_size}) is above {facts.layers} layers.",
            ("pipeline_parallel_size",),
        )


def _arithmetic(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    capability = target.compute_capability
    if settings.dtype == "bfloat16" and capability is not None and capability < NATIVE_BF16:
        yield Conflict(
            "dtype_needs_newer_gpu",
            f"bfloat16 needs compute capability 8.0; the device has {_dotted(capability)}. Use float16.",
            ("dtype",),
        )


def _kv_cache_dtype(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    wanted, field = settings.kv_cache_dtype, ("kv_cache_dtype",)
    if target.kv_cache_dtypes is not None:
        if wanted not in target.kv_cache_dtypes:
            listed = ", ".join(sorted(target.kv_cache_dtypes))
            message = f"The runtime has no KV cache in {wanted} on this device; it has {listed}."
            yield Conflict("kv_cache_dtype_unsupported", message, field)
    elif wanted.startswith("fp8") and target.device == "cpu":
        message = "An FP8 KV cache on a CPU needs AVX-512 or AMX; the runtime was not found to use it."
        yield Conflict("kv_cache_dtype_unsupported", message, field)
    elif wanted in {"fp8", "fp8_e4m3"} and (target.compute_capability or NATIVE_FP8) < NATIVE_FP8:
        message = "An FP8 KV cache in e4m3 needs compute capability 8.9. Use fp8_e5m2 or auto."
        yield Conflict("kv_cache_dtype_unsupported", message, field)


def _quantization(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    of_files = target.facts.quantization if target.facts else None
    if settings.quantization and of_files and not _same_method(settings.quantization, of_files):
        yield Conflict(
            "quantization_mismatch",
            f"The version's files hold {of_files}, not {settings.quantization}. Leave it empty.",
            ("quantization",),
        )
    method = settings.quantization or of_files
    if method and target.quantizations is not None and not _is_offered(method, target.quantizations):
        yield Conflict(
            "quantization_unsupported",
            f"The runtime cannot run {method}. Choose another runtime, or a version quantized otherwise.",
            ("quantization",),
        )


def _same_method(wanted: str, of_files: str) -> bool:
    return wanted == of_files or wanted.removesuffix("_marlin").removeprefix("auto_") == of_files


def _is_offered(method: str, offered: frozenset[str]) -> bool:
    return any(_same_method(candidate, method) for candidate in offered)


def _speculation(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    method = settings.speculative_method
    if method is None:
        yield from _idle_speculation_fields(settings)
        return
    if target.speculative_methods is not None and method not in target.speculative_methods:
        message = f"The runtime lacks what speculative decoding by {method} needs."
        yield Conflict("speculation_unsupported", message, ("speculative_method",))
    if settings.speculative_tokens is None:
        message = "Speculative decoding needs speculative_tokens."
        yield Conflict("speculation_incomplete", message, ("speculative_tokens",))
    if (method in _NEEDS_DRAFT) != (settings.speculative_version is not None):
        word = "needs" if method in _NEEDS_DRAFT else "takes no"
        message = f"Speculative decoding by {method} {word} speculative_version."
        yield Conflict("speculation_incomplete", message, ("speculative_version",))
    low, high = settings.prompt_lookup_min, settings.prompt_lookup_max
    if low is not None and high is not None and low > high:
        message = "prompt_lookup_min must not be above prompt_lookup_max."
        yield Conflict("lookup_range", message, ("prompt_lookup_min", "prompt_lookup_max"))


def _idle_speculation_fields(settings: EngineSettings) -> Iterator[Conflict]:
    names = ("speculative_tokens", "speculative_version", "prompt_lookup_min", "prompt_lookup_max")
    idle = tuple(name for name in names if getattr(settings, name) is not None)
    if idle:
        message = f"{', '.join(idle)} do nothing without speculative_method."
        yield Conflict("speculation_incomplete", message, ("speculative_method", *idle))


def _offload(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    if settings.kv_offload_bytes is not None and target.device == "cpu":
        message = "KV offload moves blocks from a GPU to host memory; on `cpu` the engine refuses it."
        yield Conflict("offload_needs_gpu", message, ("kv_offload_bytes",))


def _warm_up(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    wanted = settings.warm_up_per_lane * target.lanes
    if wanted > MAX_WARM_UP:
        message = (
            f"The warm-up would send {wanted} requests over {target.lanes} lanes; {MAX_WARM_UP} are allowed."
        )
        yield Conflict("warm_up_too_long", message, ("warm_up_per_lane",))


def _fp8_without_arithmetic(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    method = settings.quantization or (target.facts.quantization if target.facts else None) or ""
    capability = target.compute_capability
    if "fp8" in method and capability is not None and capability < NATIVE_FP8:
        message = (
            f"FP8 arithmetic needs compute capability 8.9; with {_dotted(capability)} only the weights are "
            "kept in FP8: memory is saved, time is not."
        )
        yield Conflict("fp8_weight_only", message, ("quantization",))


def _four_bit_on_cpu(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    method = settings.quantization or (target.facts.quantization if target.facts else None)
    if target.device == "cpu" and method in _FOUR_BIT:
        message = f"{method} on a CPU without AVX-512 starts well and dies at its first request."
        yield Conflict("four_bit_on_cpu", message, ("quantization",))


def _whole_host(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    if target.device == "cpu" and settings.kv_cache_memory_bytes is None:
        percent = round(settings.gpu_memory_utilization * 100)
        message = f"On `cpu` the engine takes {percent} % of the host's memory. Set kv_cache_memory_bytes."
        yield Conflict("takes_host_memory", message, ("kv_cache_memory_bytes", "gpu_memory_utilization"))


def _rehearsal(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    if settings.rehearsal is not None:
        yield Conflict(
            "rehearsal",
            f"A simulated engine misbehaves on purpose here ({settings.rehearsal}); a real one ignores it.",
            ("rehearsal",),
        )


def _forced_block_size(settings: EngineSettings, target: Target) -> Iterator[Conflict]:
    if settings.block_size is not None:
        message = "A forced block_size can exclude the faster attention backend."
        yield Conflict("forced_block_size", message, ("block_size",))


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


_Rule = Callable[[EngineSettings, Target], Iterator[Conflict]]
_CONFLICT_RULES: tuple[_Rule, ...] = (
    _batches,
    _block_size,
    _context,
    _parallelism,
    _arithmetic,
    _kv_cache_dtype,
    _quantization,
    _speculation,
    _offload,
    _warm_up,
)
_WARNING_RULES: tuple[_Rule, ...] = (
    _fp8_without_arithmetic,
    _four_bit_on_cpu,
    _whole_host,
    _forced_block_size,
    _rehearsal,
)
