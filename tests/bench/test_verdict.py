"""The verdict's benchmark: its simulated hours, and that the gates are right on a few of them."""

from __future__ import annotations

import statistics

from bench._verdict_sim import Scenario, make_blocks
from bench.verdict import SLOW, Run, judge_run
from pool.domain.rollout import Judgement
from pool.domain.strata import Sample


def list_samples(scenario: Scenario, seed: int = 1) -> list[Sample]:
    return [sample for samples in make_blocks(seed, scenario).values() for sample in samples]


def test_an_hour_has_five_requests_a_second_of_which_half_are_the_candidates() -> None:
    samples = list_samples(Scenario())

    assert 15_000 < len(samples) < 22_000
    assert 0.45 < statistics.fmean(sample.candidate for sample in samples) < 0.55


def test_only_the_candidates_short_lane_is_slower() -> None:
    usual, slow = list_samples(Scenario()), list_samples(SLOW)

    for lane, mine, factor in (("short", True, 1.2), ("short", False, 1.0), ("mid", True, 1.0)):
        before, after = (
            sum(one.ttft_s or 0 for one in samples if one.lane == lane and one.candidate is mine)
            for samples in (usual, slow)
        )
        assert abs(after / before - factor) < 0.001


def test_the_same_seed_is_the_same_hour() -> None:
    assert make_blocks(3, Scenario(seconds=300)) == make_blocks(3, Scenario(seconds=300))


def test_an_idle_hour_is_not_yet_fc11() -> None:
    assert judge_run(("idle", 0)) == Run(None, None, False, Judgement.NOT_YET)


def test_the_gates_are_right_on_a_few_hours() -> None:
    slow = [judge_run(("slow", seed)) for seed in range(3)]
    errors = [judge_run(("errors", seed)) for seed in range(3)]

    assert all(run.last is Judgement.WORSE for run in (*slow, *errors))
