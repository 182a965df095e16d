"""How old a figure is and what that makes of it. Missing is never zero."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

STALE_AFTER = timedelta(seconds=10)
"""Samples come each second or two; ten seconds without one is what an operator must be told."""


class FigureState(StrEnum):
    MEASURED = "measured"
    """Young enough to act on."""
    STALE = "stale"
    """Was measured, but too long ago: shown with its age."""
    ESTIMATED = "estimated"
    """Computed from the release, because nobody measured it yet."""
    ABSENT = "absent"
    """Nobody has said."""


@dataclass(frozen=True)
class Age:
    """When something was measured; `age_s` counts to the moment of the query."""

    at: datetime | None
    age_s: float | None
    state: FigureState


def age_of(at: datetime | None, *, now: datetime, stale_after: timedelta = STALE_AFTER) -> Age:
    if at is None:
        return Age(at=None, age_s=None, state=FigureState.ABSENT)
    age = now - at
    state = FigureState.STALE if age > stale_after else FigureState.MEASURED
    return Age(at=at, age_s=round(max(age.total_seconds(), 0.0), 3), state=state)
