"""The lane benchmark: its mix, its engine, and that lanes do what they are for on minutes of it."""

import json
import random
from pathlib import Path

import pytest

from bench import _sim_engine as sim
from bench._mix import Call, draw_arrivals, make_mix, read_traces, scale_arrivals
from bench.lanes import FifoArm, LaneArm, Run


def list_ttft(runs: list[Run], lane: str) -> list[float]:
    return sorted(run.ttft_s for run in runs if run.lane == lane)


def test_traces_are_read_in_the_order_of_their_own_clocks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,3180,0\n"
    )
    row = {"timestamp": 1000, "input_length": 7, "output_length": 9, "hash_ids": [1]}
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")

    calls = read_traces([tmp_path / "a.csv", tmp_path / "b.jsonl"])

    assert calls == [Call(0.0, 4808, 10), Call(1.0, 7, 9), Call(1.5, 3180, 1)]


def test_the_bundled_mix_has_the_published_quantiles() -> None:
    calls = make_mix(random.Random(1))
    prompts = sorted(call.prompt_tokens for call in calls)

    assert len(calls) == 40_216
    assert 1_300 < prompts[len(prompts) // 2] < 2_200
    assert prompts[-1] <= 126_195


def test_arrivals_are_stretched_to_a_load_and_drawn_at_random() -> None:
    calls = make_mix(random.Random(1))

    scaled = scale_arrivals(calls, 20_000.0)
    drawn = draw_arrivals(scaled, random.Random(2))

    tokens = sum(call.prompt_tokens + call.output_tokens for call in scaled)
    assert tokens / scaled[-1].at_s == pytest.approx(20_000.0)
    assert sorted(call.prompt_tokens for call in drawn) == sorted(call.prompt_tokens for call in calls)


def test_the_engine_prefills_in_order_and_decodes_beside_it() -> None:
    arm = FifoArm()
    for replica in arm.replicas[1:]:
        replica.in_flight = sim.SLOTS

    first, second, third = arm.serve([Call(0.0, 8_000, 5), Call(0.001, 4_000, 2), Call(0.002, 100, 1)])

    assert first.ttft_s == pytest.approx(1.024, abs=0.3)
    assert second.first_token_at_s == third.first_token_at_s == pytest.approx(1.513, abs=0.01)
    assert all(run.finished_at_s is not None for run in (first, second, third))


def test_two_very_long_prompts_stand_in_front_of_no_short_one() -> None:  # FC-37
    calls = [Call(0.01 * number, 60_000, 100) for number in range(6)]
    calls += [Call(0.2 + 0.1 * number, 400, 50) for number in range(50)]

    lanes, fifo = LaneArm().serve(calls), FifoArm().serve(calls)

    p95 = int(50 * 0.95)
    assert list_ttft(lanes, "short")[p95] < 0.3
    assert list_ttft(fifo, "short")[p95] > 3.0
    assert len(list_ttft(lanes, "long")) == 6


def test_lanes_cut_the_short_tail_and_keep_the_long_goodput() -> None:
    calls = scale_arrivals(make_mix(random.Random(3)), 0.8 * 29_000)[:2_000]

    lanes, fifo = LaneArm().serve(calls), FifoArm().serve(calls)

    short = [list_ttft(runs, "short") for runs in (lanes, fifo)]
    assert short[0][int(len(short[0]) * 0.99)] <= 0.35 * short[1][int(len(short[1]) * 0.99)]
    assert not any(run.refused for run in lanes)
