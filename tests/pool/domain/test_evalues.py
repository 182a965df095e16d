from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.domain.evalues import TILTS, Evidence, log_evalue, median_scores, rank_scores

scores = st.lists(st.floats(min_value=-1, max_value=1), min_size=2, max_size=7)
tilts = st.sampled_from([-2.8, -0.7, 0.35, 1.4, 2.8])


@settings(deadline=None)
@given(scores, st.integers(min_value=1, max_value=6), tilts, st.sampled_from([0.0, 0.4]))
def test_its_mean_over_all_draws_is_one(values: list[float], count: int, tilt: float, margin: float) -> None:
    count = min(count, len(values) - 1)
    draws = [
        tuple(place in chosen for place in range(len(values)))
        for chosen in combinations(range(len(values)), count)
    ]
    weights = [
        math.exp(margin * sum(value for value, mine in zip(values, draw, strict=True) if mine))
        for draw in draws
    ]

    mean = sum(
        weight * math.exp(log_evalue(values, draw, tilt, margin=margin))
        for weight, draw in zip(weights, draws, strict=True)
    ) / sum(weights)

    assert mean == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("tilt", [-2.8, 2.8])
def test_many_units_stay_within_what_a_float_holds(tilt: float) -> None:
    values = [place / 500 - 1 for place in range(1000)]

    for chosen in (1, 3, 500, 999):
        told = log_evalue(values, [place < chosen for place in range(1000)], tilt)
        assert math.isfinite(told)
    assert log_evalue(values, [place >= 500 for place in range(1000)], 2.8) > 100


def test_one_side_alone_is_no_evidence_fc11() -> None:
    evidence = Evidence()
    evidence.add([0.1, 0.9], [True, True])
    evidence.add([0.5], [False])

    assert evidence.close_block() == pytest.approx(0.0)
    assert evidence.blocks == 0


def test_a_worse_candidate_makes_it_grow_and_a_better_one_shrink() -> None:
    worse, better = Evidence(), Evidence()
    for _ in range(30):
        worse.add(rank_scores([0.1, 0.2, 0.3, 0.4]), [False, True, False, True])
        better.add(rank_scores([0.1, 0.2, 0.3, 0.4]), [True, False, True, False])

    assert worse.close_block() > math.log(20)
    assert better.close_block() < 0
    assert better.highest_log == 0


def test_a_margin_asks_for_more() -> None:
    strict, lenient = Evidence(), Evidence()
    for _ in range(30):
        strict.add([0.0, 0.0, 1.0], [False, False, True])
        lenient.add([0.0, 0.0, 1.0], [False, False, True], margin=math.log(3))

    assert lenient.close_block() < strict.close_block()


def test_scores_do_not_depend_on_units_or_order() -> None:
    assert rank_scores([3.0, 1.0, 2.0]) == [1.0, -1.0, 0.0]
    assert rank_scores([30.0, 10.0, 20.0]) == rank_scores([3.0, 1.0, 2.0])
    assert rank_scores([5.0, 5.0, 5.0]) == [0.0, 0.0, 0.0]
    assert rank_scores([7.0]) == [0.0]
    assert median_scores([1.0, 2.0, 3.0, 4.0]) == [0.0, 0.0, 1.0, 1.0]


def test_the_mean_over_tilts_is_what_counts() -> None:
    evidence = Evidence(logs=[math.log(40.0)] + [-50.0] * (len(TILTS) - 1))

    assert math.exp(evidence.close_block()) == pytest.approx(40.0 / len(TILTS))
