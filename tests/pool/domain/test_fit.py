from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.fit import (
    FitCode,
    decide_fit,
    footprint_bytes,
    lane_peaks,
    largest_context,
    suggest_context,
)
from pool.domain.lanes import Lane, default_lanes
from pool.domain.memory import CPU_PROCESS_BYTES, GIB, MIB, Device, KvPlan, Unknown, predict_kv
from pool.domain.profiles import EngineSettings
from pool.domain.starter_profiles import STARTER_PROFILES
from pool.domain.version_facts import CacheKind
from tests.pool.domain.test_memory import CPU, H100, SMOLLM2

DEMO = STARTER_PROFILES["cpu-demo"]
HYBRID = replace(SMOLLM2, cache_kind=CacheKind.UNKNOWN, cache_unknown_reason="hybrid")


def demo_plan(**changes: Any) -> KvPlan:
    plan = predict_kv(SMOLLM2, replace(DEMO, **changes), device=CPU)
    assert isinstance(plan, KvPlan)
    return plan


def test_the_demo_profile_fits_smollm2() -> None:
    fit = decide_fit(SMOLLM2, DEMO, device=CPU, lanes=default_lanes(8192))

    assert fit.ok
    assert fit.code is FitCode.FITS
    assert fit.message == "The KV cache holds 5760 tokens."
    assert fit.weight_bytes == 538_060_032


def test_a_context_larger_than_the_memory_says_how_much_fits() -> None:
    fit = decide_fit(SMOLLM2, replace(DEMO, max_model_len=8192), device=CPU)

    assert fit.code is FitCode.CONTEXT_TOO_LARGE
    assert not fit.ok
    assert fit.largest_context_tokens == 4480
    assert "4480 tokens fit into 0.25 GiB beside the reserve" in fit.message


def test_the_reserve_belongs_to_the_decision_and_not_to_the_prediction() -> None:
    plan = demo_plan(max_model_len=4608)

    assert plan.engine_accepts
    assert (
        decide_fit(SMOLLM2, replace(DEMO, max_model_len=4608), device=CPU).code is FitCode.CONTEXT_TOO_LARGE
    )


@pytest.mark.parametrize(
    ("total_bytes", "chosen"),
    [
        (GIB, {}),
        (2 * GIB, {"kv_cache_memory_bytes": 2 * GIB}),
        (16 * GIB, {"kv_cache_memory_bytes": 4 * MIB, "dtype": "float32"}),
    ],
)
def test_a_device_without_room_for_the_weights_says_so(total_bytes: int, chosen: dict[str, Any]) -> None:
    fit = decide_fit(SMOLLM2, EngineSettings(**chosen), device=Device(kind="cpu", total_bytes=total_bytes))

    assert fit.code is FitCode.NO_ROOM_FOR_WEIGHTS


def test_an_estimated_budget_is_called_one() -> None:
    assert decide_fit(SMOLLM2, EngineSettings(), device=H100).message.startswith("The KV cache holds about ")


def test_an_unknown_cache_is_not_refused() -> None:
    fit = decide_fit(HYBRID, EngineSettings(), device=H100)

    assert fit.code is FitCode.UNPREDICTED
    assert fit.ok
    assert fit.plan is None


def test_weights_of_unknown_size_leave_a_fixed_cache_predictable() -> None:
    nothing = replace(SMOLLM2, weight_bytes=None, parameters=None)

    assert decide_fit(nothing, DEMO, device=CPU).weight_bytes is None
    assert decide_fit(nothing, EngineSettings(), device=H100).code is FitCode.UNPREDICTED


def test_peaks_of_lanes_are_length_times_concurrency_in_whole_blocks() -> None:
    lane = Lane(name="short", max_prompt_tokens=100, concurrency=3, ttft_target_ms=1)

    (peak,) = lane_peaks(demo_plan(), [lane])

    assert (peak.tokens_per_request, peak.requests) == (100, 3)
    assert peak.bytes == 3 * 128 * 46_080
    assert peak.share_ratio == pytest.approx(3 / 44)


def test_the_last_lane_reaches_up_to_the_context() -> None:
    peaks = lane_peaks(demo_plan(max_model_len=2048), default_lanes(None))

    assert [peak.tokens_per_request for peak in peaks] == [2048, 2048, 2048]


def test_peaks_of_an_empty_cache_are_endless() -> None:
    plan = demo_plan(kv_cache_memory_bytes=MIB)

    assert lane_peaks(plan, default_lanes(64))[0].share_ratio == math.inf


def test_the_footprint_is_the_share_or_the_sum_of_the_parts() -> None:
    share = footprint_bytes(SMOLLM2, EngineSettings(), device=H100)
    parts = footprint_bytes(SMOLLM2, DEMO, device=CPU)
    nothing = footprint_bytes(replace(SMOLLM2, weight_bytes=None, parameters=None), DEMO, device=CPU)

    assert share == math.ceil(80 * GIB * 0.85)
    assert parts == 538_060_032 + 256 * MIB + CPU_PROCESS_BYTES
    assert isinstance(nothing, Unknown)


def test_a_context_is_suggested_up_to_the_wished_one() -> None:
    assert suggest_context(SMOLLM2, DEMO, device=CPU) == 4096
    assert suggest_context(SMOLLM2, replace(DEMO, max_model_len=8192), device=CPU) == 4480
    assert suggest_context(SMOLLM2, replace(DEMO, kv_cache_memory_bytes=MIB), device=CPU) is None
    assert suggest_context(HYBRID, DEMO, device=CPU) is None


@given(st.integers(1, 64), st.integers(20, 34))
def test_the_largest_context_is_accepted_by_the_engine(layers: int, power: int) -> None:
    settings = EngineSettings(kv_cache_memory_bytes=2**power)
    plan = predict_kv(replace(SMOLLM2, layers=layers), settings, device=H100)
    assert isinstance(plan, KvPlan)

    largest = largest_context(plan)

    assert largest <= plan.usable_tokens * 0.8
    assert largest == 0 or replace(plan, context_tokens=largest).engine_accepts
