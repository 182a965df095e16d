"""Evidence that may be looked at at any time: e-values of a two-sample comparison inside small blocks. Pure.

An e-value has mean 1 at most where the hypothesis holds. Those of later blocks, given the earlier ones, multiply, and
the product passes 1/alpha with probability alpha at most, however often it is read (Ville's inequality; Turner, Ly and
Grünwald 2021; Ramdas, Grünwald, Vovk and Shafer 2023, "Game-theoretic statistics and safe anytime-valid inference").

Within one block and stratum, all units being alike, which of them were the candidate's is as good as drawn by lot. So
the sum of the candidate's scores has a known law given all scores of the block, whatever time of day, load or mix of
requests it is. The e-value is that law's exponential tilt: the likelihood ratio of "candidates are drawn in favour of
high scores" against "by lot", or against "in favour by no more than the margin".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

TILTS: Final = (0.35, 0.7, 1.4, 2.8)
"""Strengths that are betted on in equal parts: what is lost by not knowing the right one is log 4 at most."""

_MARKS: Final = frozenset({0.0, 1.0})
_MOST_MARKS: Final = 128
"""Units up to which the ways to choose among them, times what is betted, are a double."""
_RESCALE_EVERY = 16
"""Scores: in between the sums grow by less than a double holds."""


def log_evalue(scores: Sequence[float], chosen: Sequence[bool], tilt: float, *, margin: float = 0.0) -> float:
    """Of one block and stratum. `scores`: of all units, the higher the worse, about 1 wide. `chosen`: the candidate's.
    `tilt`: how strongly high scores are thought to be favoured; a negative one tests that they are disfavoured.
    `margin`: the tilt that the hypothesis allows.

    0 where one of the two sides is missing: no evidence. For any sets of equal size the value's mean under the
    hypothesis is 1: exact, no approximation.
    """
    return log_evalues(scores, chosen, (tilt,), margin=margin)[0]


def log_evalues(
    scores: Sequence[float], chosen: Sequence[bool], tilts: Sequence[float], *, margin: float = 0.0
) -> list[float]:
    """`log_evalue` for each tilt."""
    count = sum(chosen)
    if count in (0, len(scores)):
        return [0.0] * len(tilts)
    total = math.fsum([score for score, mine in zip(scores, chosen, strict=True) if mine])
    ordered = tuple(sorted(scores))
    allowed = _log_sum(ordered, count, margin)
    return [tilt * total - _log_sum(ordered, count, margin + tilt) + allowed for tilt in tilts]


@lru_cache(maxsize=16384)
def _log_sum(scores: tuple[float, ...], count: int, tilt: float) -> float:
    """log of the sum, over all choices of `count` scores, of exp(tilt × their sum). Ranks without ties and marks of
    0 and 1 are the same few tuples again and again, so that what was worked out is kept."""
    if tilt == 0.0:
        return _log_choose(len(scores), count)
    if len(scores) <= _MOST_MARKS and _MARKS.issuperset(scores):
        return _log_marked(len(scores), int(sum(scores)), count, tilt)
    # The elementary symmetric polynomial of order `count`, built up score by score. Choosing `count` is leaving out the
    # others, which are fewer where it is more than half.
    shift = math.fsum(scores) / len(scores)
    exponents = [tilt * (score - shift) for score in scores]
    order, logged = count, tilt * shift * count
    if count > len(scores) - count:
        order = len(scores) - count
        logged += math.fsum(exponents)
        exponents = [-exponent for exponent in exponents]
    sums = [1.0] + [0.0] * order
    for number, exponent in enumerate(exponents, 1):
        weight = math.exp(exponent)
        for size in range(min(number, order), 0, -1):
            sums[size] += weight * sums[size - 1]
        if number % _RESCALE_EVERY == 0:
            largest = max(sums)
            sums = [value / largest for value in sums]
            logged += math.log(largest)
    return logged + math.log(sums[order])


def _log_marked(size: int, marked: int, count: int, tilt: float) -> float:
    """The same of scores of 0 and 1: by how many marked ones are chosen (the extended hypergeometric law)."""
    fewest, most = max(0, count - (size - marked)), min(count, marked)
    return math.log(
        sum(
            math.comb(marked, ones) * math.comb(size - marked, count - ones) * math.exp(tilt * ones)
            for ones in range(fewest, most + 1)
        )
    )


def _log_choose(size: int, count: int) -> float:
    return math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)


def log_rate_evalue(errors: tuple[int, int], units: tuple[int, int], margin: float, strength: float) -> float:
    """Evidence of one block that the candidate's share of errors is below stable's plus `margin` (0 to 1, a difference
    of shares). Both pairs are (candidate, stable). `strength` > 0. 0 where one of the two sides is missing.

    With x = 1 - exp(-strength), each error of the candidate is weighed by exp(-strength), and each of stable's by
    1 + x × candidates ÷ stables. The mean of that product, wherever the candidate's share is at least p + margin, falls
    with stable's share p, so that its highest value, (1 - margin × x)^candidates at p = 0, is what it is divided by:
    exact, whatever p is and however it moves from block to block.
    """
    mine, others = units
    if not mine or not others:
        return 0.0
    share = -math.expm1(-strength)
    weight = math.log1p(share * mine / others)
    return errors[1] * weight - errors[0] * strength - mine * math.log1p(-margin * share)


def rank_scores(values: Sequence[float]) -> list[float]:
    """Mid-ranks of the pooled values, from -1 to 1 with mean 0; the same for equal ones. [0.0] for a single one."""
    size = len(values)
    if size < 2:
        return [0.0] * size
    order = sorted(range(size), key=values.__getitem__)
    scores = [0.0] * size
    start = 0
    while start < size:
        end = start
        while end + 1 < size and values[order[end + 1]] == values[order[start]]:
            end += 1
        middle = (start + end) / 2
        for place in range(start, end + 1):
            scores[order[place]] = 2.0 * middle / (size - 1) - 1.0
        start = end + 1
    return scores


def median_scores(values: Sequence[float]) -> list[float]:
    """1 above the pooled median, 0 up to it: a shift of the middle alone."""
    middle = sorted(values)[(len(values) - 1) // 2] if values else 0.0
    return [1.0 if value > middle else 0.0 for value in values]
