"""Whether a release fits a device, and what its lanes take of the KV cache. The reserve is applied here
only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pool.domain.lanes import Lane
from pool.domain.memory import (
    GIB,
    Device,
    KvPlan,
    Unknown,
    context_of,
    overhead_bytes,
    predict_kv,
    weight_bytes_per_device,
)
from pool.domain.profiles import EngineSettings
from pool.domain.version_facts import ModelFacts

RESERVE_RATIO = 0.2
"""Share of the KV tokens that admission keeps back; a full context must fit beside it."""


class FitCode(StrEnum):
    FITS = "fits"
    """By prediction it starts and keeps its reserve."""
    UNPREDICTED = "unpredicted"
    """Nothing is known against it; the engine's own figures will tell."""
    NO_ROOM_FOR_WEIGHTS = "no_room_for_weights"
    """Weights and the engine's own use leave nothing for the cache."""
    CONTEXT_TOO_LARGE = "context_too_large"
    """A single request of full context does not fit into the cache beside the reserve."""


@dataclass(frozen=True, kw_only=True)
class LanePeak:
    """A lane with all its requests at once, each as long as the lane allows."""

    lane: str
    tokens_per_request: int
    requests: int
    bytes: int
    share_ratio: float
    """Of the usable blocks; above 1 the engine preempts and queues, it does not run out of memory."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    code: FitCode
    message: str
    plan: KvPlan | None = None
    weight_bytes: int | None = None
    overhead_bytes: int = 0
    largest_context_tokens: int | None = None
    """What would fit beside the reserve; None: not predicted."""
    peaks: tuple[LanePeak, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code in {FitCode.FITS, FitCode.UNPREDICTED}


def decide_fit(
    facts: ModelFacts, settings: EngineSettings, *, device: Device, lanes: Sequence[Lane] = ()
) -> Fit:
    """For one device as large as `device`, empty. Whether its memory is free now is placement's question."""
    weights = weight_bytes_per_device(facts, settings)
    overhead = overhead_bytes(facts, settings, device=device)
    plan = predict_kv(facts, settings, device=device)
    known_weights = None if isinstance(weights, Unknown) else weights
    if isinstance(plan, Unknown):
        reason = f"Not predicted: {plan.reason}. The figures that the engine prints are taken."
        return Fit(
            code=FitCode.UNPREDICTED, message=reason, weight_bytes=known_weights, overhead_bytes=overhead
        )
    largest = largest_context(plan)
    code, message = _judge(plan, device, known_weights=known_weights or 0, overhead=overhead, largest=largest)
    return Fit(
        code=code,
        message=message,
        plan=plan,
        weight_bytes=known_weights,
        overhead_bytes=overhead,
        largest_context_tokens=largest,
        peaks=lane_peaks(plan, lanes),
    )


def largest_context(plan: KvPlan) -> int:
    """Whole blocks within the usable tokens less the reserve."""
    blocks = math.floor(plan.usable_tokens * (1 - RESERVE_RATIO) / plan.block_tokens)
    return blocks * plan.block_tokens


def lane_peaks(plan: KvPlan, lanes: Sequence[Lane]) -> tuple[LanePeak, ...]:
    """A lane without a bound reaches up to the context."""
    return tuple(_lane_peak(plan, lane) for lane in lanes)


def footprint_bytes(facts: ModelFacts, settings: EngineSettings, *, device: Device) -> int | Unknown:
    """What must be free on each device before a start: the engine's share, or all parts where the cache
    is fixed."""
    if settings.kv_cache_memory_bytes is None:
        return math.ceil(device.total_bytes * settings.gpu_memory_utilization)
    weights = weight_bytes_per_device(facts, settings)
    if isinstance(weights, Unknown):
        return weights
    return weights + settings.kv_cache_memory_bytes + overhead_bytes(facts, settings, device=device)


def suggest_context(facts: ModelFacts, settings: EngineSettings, *, device: Device) -> int | None:
    """The longest context, at most the wished one, that fits beside the reserve; None: not predicted, or
    none fits."""
    plan = predict_kv(facts, settings, device=device)
    if isinstance(plan, Unknown):
        return None
    return min(context_of(facts, settings), largest_context(plan)) or None


def _judge(
    plan: KvPlan, device: Device, *, known_weights: int, overhead: int, largest: int
) -> tuple[FitCode, str]:
    needed = known_weights + overhead
    room = device.total_bytes - (0 if plan.budget_is_estimate else plan.budget_bytes)
    if plan.blocks <= 1 or needed > room:
        message = (
            f"Weights and engine take {gib(needed)} of {gib(device.total_bytes)}, with "
            f"{gib(plan.budget_bytes)} for the KV cache. Use more devices or a quantized version."
        )
        return FitCode.NO_ROOM_FOR_WEIGHTS, message
    if plan.context_tokens > largest:
        message = (
            f"{plan.context_tokens} tokens of context need {gib(plan.bytes_of(plan.context_tokens))} of KV "
            f"cache; {largest} tokens fit into {gib(plan.budget_bytes)} beside the reserve of 20 %. "
            "Lower max_model_len or give the cache more memory."
        )
        return FitCode.CONTEXT_TOO_LARGE, message
    word = "about " if plan.budget_is_estimate else ""
    return FitCode.FITS, f"The KV cache holds {word}{plan.printed_tokens} tokens."


def _lane_peak(plan: KvPlan, lane: Lane) -> LanePeak:
    bound = lane.max_prompt_tokens
    tokens = plan.context_tokens if bound is None else min(bound, plan.context_tokens)
    taken = plan.bytes_of(tokens) * lane.concurrency
    usable = plan.usable_tokens * plan.bytes_per_token
    return LanePeak(
        lane=lane.name,
        tokens_per_request=tokens,
        requests=lane.concurrency,
        bytes=taken,
        share_ratio=taken / usable if usable else math.inf,
    )


def gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
