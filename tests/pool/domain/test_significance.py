from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.significance import compare_shares, find_significant

small, numbers = st.integers(0, 40), st.integers(0, 2000)


def exact_p(hits: int, total: int, other_hits: int, other_total: int) -> float:
    """Twice the smaller tail, by whole numbers."""
    pooled, everything = hits + other_hits, total + other_total
    weights = {
        k: math.comb(total, k) * math.comb(other_total, pooled - k)
        for k in range(max(0, pooled - other_total), min(total, pooled) + 1)
    }
    whole = math.comb(everything, pooled)
    tails = (sum(w for k, w in weights.items() if k >= hits), sum(w for k, w in weights.items() if k <= hits))
    expected = Fraction(total * pooled, everything)
    return min(1.0, float(2 * Fraction(tails[0] if hits >= expected else tails[1], whole)))


@given(hits=small, misses=small, other_hits=small, other_misses=small)
def test_small_counts_are_compared_exactly(
    hits: int, misses: int, other_hits: int, other_misses: int
) -> None:
    total, other_total = hits + misses, other_hits + other_misses
    p_value = compare_shares(hits, total, other_hits, other_total)

    if 0 in (total, other_total, hits + other_hits, misses + other_misses):
        assert p_value == 1.0
    else:
        assert p_value == pytest.approx(exact_p(hits, total, other_hits, other_total), rel=1e-6)


@pytest.mark.parametrize("more", [0, 20, 60, 120])
def test_large_counts_are_near_the_exact_answer(more: int) -> None:
    p_value = compare_shares(300 + more, 2000, 600, 4000)

    assert p_value == pytest.approx(exact_p(300 + more, 2000, 600, 4000), rel=0.6)


@given(
    hits=st.integers(0, 2000),
    total=st.integers(1, 2000),
    other_hits=st.integers(0, 2000),
    other=st.integers(1, 2000),
)
def test_both_sides_may_be_swapped(hits: int, total: int, other_hits: int, other: int) -> None:
    first, second = (min(hits, total), total), (min(other_hits, other), other)

    assert compare_shares(*first, *second) == pytest.approx(
        compare_shares(*second, *first), rel=1e-6, abs=1e-300
    )


def test_a_release_with_few_requests_is_not_slandered() -> None:
    # 100 slow requests, 5 % of the traffic: the normal approximation calls this one in two million.
    p_value = compare_shares(16, 500, 84, 9500)

    assert 1e-5 < p_value < 1e-3


def test_more_hits_than_trials_are_no_counts() -> None:
    with pytest.raises(ValueError, match="more hits than trials"):
        compare_shares(3, 2, 0, 1)


def test_of_many_tests_the_limit_is_shared() -> None:
    assert find_significant([0.04]) == [True]
    assert find_significant([0.04, 0.04]) == [False, False]
    assert find_significant([0.9, 0.001, 0.02, 0.03]) == [False, True, False, False]
    assert find_significant([]) == []


def test_of_pictures_of_chance_few_have_a_coloured_cell() -> None:
    draw = random.Random(7)
    wrong = 0
    for _ in range(200):
        counts = [[sum(draw.random() < 0.1 for _ in range(60)) for _ in range(2)] for _ in range(20)]
        p_values = [compare_shares(mine, 60, other, 60) for mine, other in counts]
        wrong += any(find_significant(p_values))

    assert wrong <= 200 * 0.05 * 2
