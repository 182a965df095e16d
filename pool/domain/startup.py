"""How long a start may take: from the size of what is loaded and from what earlier starts took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

BASE = timedelta(minutes=3)
"""Imports and engine initialisation on a busy small host take up to 50 s, compiling with cold caches
another 55 s."""
SLOWEST_READ_BYTES_PER_S = 50 * 2**20
"""A shared network disk; what is slower shows signs of progress, which extend the budget."""
HISTORY_FACTOR = 3
"""Cold caches and a busy host cost up to this much against the slowest start seen."""
WARM_UP_MARGIN = timedelta(seconds=60)
"""The recipe ends by its own budget; past it by this much, the node does not answer any more."""


def load_budget(weight_bytes: int, *, past: Sequence[timedelta] = ()) -> timedelta:
    """For `loading`. `past`: lengths of earlier successful loads of the same release, on any node."""
    if past:
        return max(BASE, HISTORY_FACTOR * max(past))
    return BASE + timedelta(seconds=weight_bytes / SLOWEST_READ_BYTES_PER_S)


def warm_up_budget(recipe_budget: timedelta) -> timedelta:
    return recipe_budget + WARM_UP_MARGIN
