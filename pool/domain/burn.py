"""Error budgets: how much of what a promise allows is used up, and how fast.

Windows and rates: Google's Site Reliability Workbook, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts", for a
budget of 30 days (read 2026-11). The long window shows that it matters, the short one that it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pool.domain.alerting import Level, Reading

BUDGET_PERIOD: Final = timedelta(days=30)
LEAST_BAD: Final = 3
"""One failed request among a few is no burn (FC-11)."""


@dataclass(frozen=True, slots=True)
class Count:
    """Requests, and how many of them broke the promise."""

    total: int = 0
    bad: int = 0

    def plus(self, other: Count) -> Count:
        return Count(self.total + other.total, self.bad + other.bad)


@dataclass(frozen=True, slots=True)
class BurnWindow:
    level: Level
    long: timedelta
    short: timedelta
    rate: float
    """1 = just as fast as uses the budget up at the end of its period."""


WINDOWS: Final = (
    BurnWindow(Level.RED, timedelta(hours=1), timedelta(minutes=5), 14.4),
    BurnWindow(Level.ORANGE, timedelta(hours=6), timedelta(minutes=30), 6.0),
    BurnWindow(Level.YELLOW, timedelta(days=3), timedelta(hours=6), 1.0),
)
ALL_SPANS: Final = tuple(sorted({span for window in WINDOWS for span in (window.long, window.short)}))


def burn_rate(count: Count, allowed_ratio: float) -> float | None:
    """None without requests."""
    if not count.total:
        return None
    return count.bad / count.total / allowed_ratio


def budget_left(count: Count, allowed_ratio: float) -> float | None:
    """1 = untouched, 0 = used up, below = overdrawn; None without requests."""
    rate = burn_rate(count, allowed_ratio)
    return None if rate is None else 1 - rate


def read_burn(count_of: Callable[[timedelta], Count], allowed_ratio: float, *, min_samples: int) -> Reading:
    """A level's value is the lower rate of its two windows; the reading's own value is that of the fastest pair.

    `few` too where the long windows have enough requests and no short one has any."""
    by_level: dict[Level, float] = {}
    samples = 0
    for window in WINDOWS:
        long, short = count_of(window.long), count_of(window.short)
        samples = max(samples, long.total)
        slow, fast = burn_rate(long, allowed_ratio), burn_rate(short, allowed_ratio)
        if long.total < min_samples or slow is None or fast is None:
            # Without a request in the short window nobody knows whether it still burns.
            continue
        by_level[window.level] = min(slow, fast) if long.bad >= LEAST_BAD else 0.0
    if not by_level:
        return Reading(None, samples, "few" if samples else "absent")
    return Reading(by_level[max(by_level)], samples, by_level=by_level)
