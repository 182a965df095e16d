from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.domain.evalues import log_evalue, log_rate_evalue, median_scores, rank_scores

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
    assert log_evalue([0.1, 0.9], [True, True], 1.4) == 0.0
    assert log_evalue([0.5], [False], 1.4) == 0.0
    assert log_rate_evalue((0, 0), (5, 0), 0.01, 1.0) == 0.0
    assert log_rate_evalue((0, 0), (0, 5), 0.01, 1.0) == 0.0


def test_a_worse_candidate_makes_it_grow_and_a_better_one_shrink() -> None:
    ranks = rank_scores([0.1, 0.2, 0.3, 0.4])

    assert log_evalue(ranks, [False, True, False, True], 0.7) > 0
    assert log_evalue(ranks, [True, False, True, False], 0.7) < 0
    assert log_evalue(ranks, [True, False, True, False], -0.7) > 0


def test_a_margin_asks_for_more() -> None:
    chosen = [False, False, True]

    assert log_evalue([0.0, 0.0, 1.0], chosen, 0.7, margin=math.log(3)) < log_evalue(
        [0.0, 0.0, 1.0], chosen, 0.7
    )


@given(
    st.integers(1, 6), st.integers(1, 6), st.floats(0, 0.6), st.floats(0.001, 0.3), st.floats(0, 0.1),
    st.sampled_from([0.2, 0.6, 1.5, 4.0]),
)  # fmt: skip
def test_a_share_above_the_margin_means_at_most_one(
    mine: int, others: int, share: float, margin: float, beyond: float, strength: float
) -> None:
    mean = math.fsum(
        _chance(wrong, mine, share + margin + beyond)
        * _chance(more, others, share)
        * math.exp(log_rate_evalue((wrong, more), (mine, others), margin, strength))
        for wrong in range(mine + 1)
        for more in range(others + 1)
    )

    assert mean <= 1 + 1e-9


def _chance(wrong: int, size: int, share: float) -> float:
    return math.comb(size, wrong) * share**wrong * (1 - share) ** (size - wrong)


def test_answers_without_errors_are_evidence_that_there_are_few() -> None:
    assert log_rate_evalue((0, 0), (400, 400), 0.01, 4.0) > math.log(20)
    assert log_rate_evalue((8, 0), (400, 400), 0.01, 1.5) < 0


def test_scores_do_not_depend_on_units_or_order() -> None:
    assert rank_scores([3.0, 1.0, 2.0]) == [1.0, -1.0, 0.0]
    assert rank_scores([30.0, 10.0, 20.0]) == rank_scores([3.0, 1.0, 2.0])
    assert rank_scores([5.0, 5.0, 5.0]) == [0.0, 0.0, 0.0]
    assert rank_scores([7.0]) == [0.0]
    assert median_scores([1.0, 2.0, 3.0, 4.0]) == [0.0, 0.0, 1.0, 1.0]
