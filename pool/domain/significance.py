"""Whether two shares differ by more than chance. Exact where counts are small: the normal approximation finds
differences that are none when one side has few requests, as a release at 5 % of the traffic has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

ALPHA: Final = 0.05
_NORMAL_FROM: Final = 200.0
"""From this expected count on, on each side, the normal approximation serves."""
_NEGLIGIBLE: Final = 1e-12


def compare_shares(hits: int, total: int, other_hits: int, other_total: int) -> float:
    """Two-sided p-value that both shares are one: Fisher's exact test (twice the smaller tail), or for large counts the
    two-proportion z-test with continuity correction. 1.0 where nothing can be said.

    Raises ValueError for counts that are none.
    """
    if not (0 <= hits <= total and 0 <= other_hits <= other_total):
        raise ValueError("more hits than trials")
    pooled, everything = hits + other_hits, total + other_total
    if total == 0 or other_total == 0 or pooled in (0, everything):
        return 1.0
    expected = total * pooled / everything
    smallest = min(expected, total - expected, pooled - expected, other_total - pooled + expected)
    if smallest >= _NORMAL_FROM:
        return _normal(hits, expected, total, other_total, pooled)
    return min(1.0, 2 * _tail(hits, total, other_total, pooled))


def find_significant(p_values: Sequence[float], *, alpha: float = ALPHA) -> list[bool]:
    """Holm's correction: that any of them is called significant by chance has a probability of at most `alpha`, however
    they depend on each other (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    found = [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        found[index] = True
    return found


def _normal(hits: int, expected: float, total: int, other_total: int, pooled: int) -> float:
    everything = total + other_total
    variance = expected * (1 - pooled / everything) * other_total / everything
    distance = max(0.0, abs(hits - expected) - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))


def _tail(hits: int, total: int, other_total: int, pooled: int) -> float:
    """The probability of `hits` or further away from what is expected, on its side (hypergeometric)."""
    expected = total * pooled / (total + other_total)
    step = 1 if hits >= expected else -1
    probability = math.exp(
        _log_choose(total, hits)
        + _log_choose(other_total, pooled - hits)
        - _log_choose(total + other_total, pooled)
    )
    tail, at = 0.0, hits
    while probability > tail * _NEGLIGIBLE:
        tail += probability
        probability *= _ratio(at, step, total, other_total, pooled)
        at += step
    return min(1.0, tail)


def _ratio(at: int, step: int, total: int, other_total: int, pooled: int) -> float:
    """P(at + step) ÷ P(at)."""
    if step > 0:
        return (total - at) * (pooled - at) / ((at + 1) * (other_total - pooled + at + 1))
    return at * (other_total - pooled + at) / ((total - at + 1) * (pooled - at + 1))


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
