"""Levels of KV use of a replica: warn, no new long requests, only the shortest lane and `vip`."""

from __future__ import annotations

import math
from typing import Any

NORMAL, WARN, NO_LONG, SHORT_ONLY = 0, 1, 2, 3
LEVELS = ("normal", "warn", "no_long", "short_only")

_EXIT_BELOW_RATIO = 0.05
HOLD_S = 5.0
"""A level is left when the use was under its exit for so long."""
UNKNOWN_S = 60.0
"""A level that nothing confirms any more is given up after this time."""
FRESH_S = 3.0
"""An engine's gauge that is older says nothing."""


def read_use(
    gauge_ratio: float | None,
    gauge_at_s: float | None,
    *,
    own_tokens: int,
    kv_tokens: int | None,
    now_s: float,
) -> tuple[float | None, str]:
    """KV use and where it is from: `engine`, `estimate` (what the gateways have in flight) or `unknown`.

    A gauge that is absent, stale or no number is not zero (FC-29): the estimate stands in for it.
    """
    is_fresh = gauge_at_s is not None and now_s - gauge_at_s <= FRESH_S
    if gauge_ratio is not None and is_fresh and math.isfinite(gauge_ratio):
        return gauge_ratio, "engine"
    if kv_tokens:
        return own_tokens / kv_tokens, "estimate"
    return None, "unknown"


class Watermark:
    """Entered at once, left one after the other: 5 points lower, and held."""

    __slots__ = ("_below_since_s", "level", "reason", "seen_at_s", "since_s", "source", "used_ratio")

    def __init__(self, now_s: float) -> None:
        self._below_since_s: float | None = None
        self.level = NORMAL
        self.since_s = now_s
        self.reason = "never_reached"
        self.source = "unknown"
        self.used_ratio: float | None = None
        self.seen_at_s = now_s

    def observe(
        self, used_ratio: float | None, *, source: str, marks: tuple[float, float, float], now_s: float
    ) -> None:
        """None keeps the level for a while: an unknown use is neither low nor high."""
        self.used_ratio, self.source = used_ratio, source
        if used_ratio is None:
            if self.level and now_s - self.seen_at_s > UNKNOWN_S:
                self._enter(NORMAL, "use_unknown", now_s)
            return
        self.seen_at_s = now_s
        reached = sum(used_ratio >= mark for mark in marks)
        if reached > self.level:
            self._enter(reached, f"use_reached_{LEVELS[reached]}", now_s)
        elif self.level and used_ratio < marks[self.level - 1] - _EXIT_BELOW_RATIO:
            self._wait_to_leave(used_ratio, marks, now_s)
        else:
            self._below_since_s = None

    def describe(self, now_s: float) -> dict[str, Any]:
        return {
            "level": LEVELS[self.level],
            "reason": self.reason,
            "since_s": round(now_s - self.since_s, 1),
            "used_ratio": None if self.used_ratio is None else round(self.used_ratio, 4),
            "source": self.source,
        }

    def _wait_to_leave(self, used_ratio: float, marks: tuple[float, float, float], now_s: float) -> None:
        if self._below_since_s is None:
            self._below_since_s = now_s
        if now_s - self._below_since_s >= HOLD_S:
            # What is still above its own exit stays.
            level = sum(used_ratio >= mark - _EXIT_BELOW_RATIO for mark in marks)
            self._enter(min(level, self.level - 1), "use_fell", now_s)

    def _enter(self, level: int, reason: str, now_s: float) -> None:
        self.level = level
        self.reason = reason
        self.since_s = now_s
        self._below_since_s = None
