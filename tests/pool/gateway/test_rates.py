"""Rates of a lane, by a clock that need not be ahead of the last count."""

from __future__ import annotations

import math

from pool.domain.routing_table import LaneRoute
from pool.gateway.places import Lane


def test_a_clock_far_behind_the_last_count_gives_a_finite_rate() -> None:
    """Machines count from their start: after half a day the difference was more than a double's exponent holds."""
    lane = Lane(LaneRoute("short", None), 0, 1e9)

    assert math.isfinite(lane.rate_tokens_per_s(0.0))
