"""When an alert begins, rises, falls and ends: separate limits to enter and to leave, each held for a while.

A value that swings around its limit makes one alert, not many (FC-59). A value that nobody measured moves nothing
(FC-11, FC-29): it is no proof of health and no reason to act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, Final


class Level(IntEnum):
    NORMAL = 0  # Nothing to tell.
    PLAN = 1  # Worth a plan in daylight; never an action.
    YELLOW = 2  # Early warning: the promise still holds.
    ORANGE = 3  # The promise is broken: acts.
    RED = 4  # Broken badly: acts harder.

    @property
    def word(self) -> str:
        return self.name.lower()


LEVELS: Final[Mapping[str, Level]] = {level.word: level for level in Level}
GIVE_UP_AFTER: Final = timedelta(hours=1)
"""An alert that no data confirm for so long ends, and says that nobody knows."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found now. `value` None: it could not be judged; `state` says why.

    `by_level`: where each level has a value of its own (burn rates over different windows); else `value` counts.
    """

    value: float | None
    samples: int = 0
    state: str = "measured"
    """`measured`, `few` (samples are too few), `absent` (no data), `stale` (the newest are too old)."""
    by_level: Mapping[Level, float] = field(default_factory=dict)

    def at(self, level: Level) -> float | None:
        return self.by_level.get(level) if self.by_level else self.value

    @property
    def is_known(self) -> bool:
        return self.value is not None and self.state == "measured"


@dataclass(frozen=True, slots=True)
class Signal:
    """One watched value in one pass."""

    source: str
    """`slo`, `golden` or `resource`."""
    rule: str
    subject: str
    """What it is about, in one line: stable, it finds the state again."""
    reading: Reading
    limits: Limits
    model: str = ""
    lane: str = ""
    slo: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """JSON for people: unit, window, what else was found."""

    @property
    def key(self) -> str:
        return f"{self.source} {self.rule} {self.subject}"


@dataclass(frozen=True, slots=True)
class Limits:
    """`enter`: from which value on each level is reached, rising with the level."""

    enter: Mapping[Level, float]
    exit_below_ratio: float = 0.10
    """A level is left when the value lies below its limit by this part of it..."""
    exit_below: float = 0.0
    """...and by this much."""
    enter_hold: timedelta = timedelta(seconds=30)
    exit_hold: timedelta = timedelta(minutes=2)
    cool_down: timedelta = timedelta(minutes=5)
    """After a level was left it is not entered again for so long; a higher one may be."""

    def exit_of(self, level: Level) -> float:
        return self.enter[level] * (1 - self.exit_below_ratio) - self.exit_below


@dataclass(frozen=True, slots=True)
class AlertState:
    """Of one watched value; kept over restarts."""

    level: Level = Level.NORMAL
    since: datetime | None = None
    """When the level was entered; None = never left normal."""
    over: Mapping[Level, datetime] = field(default_factory=dict)
    """Levels whose limit was reached, since when, without having been below the exit meanwhile."""
    under_since: datetime | None = None
    """The value is below the exit of the level."""
    left_level: Level = Level.NORMAL
    left_at: datetime | None = None
    """The level that was left last, for the cool-down."""
    unknown_since: datetime | None = None

    @property
    def is_quiet(self) -> bool:
        """Nothing is lost when it is forgotten, cool-down aside."""
        return self.level is Level.NORMAL and not self.over

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level.word,
            "since": _text(self.since),
            "over": {level.word: _text(at) for level, at in self.over.items()},
            "under_since": _text(self.under_since),
            "left_level": self.left_level.word,
            "left_at": _text(self.left_at),
            "unknown_since": _text(self.unknown_since),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> AlertState:
        """What is absent is as at the start."""
        over = {LEVELS[word]: _time(at) for word, at in stored.get("over", {}).items()}
        return cls(
            level=LEVELS[stored.get("level", "normal")],
            since=_time(stored.get("since")),
            over={level: at for level, at in over.items() if at is not None},
            under_since=_time(stored.get("under_since")),
            left_level=LEVELS[stored.get("left_level", "normal")],
            left_at=_time(stored.get("left_at")),
            unknown_since=_time(stored.get("unknown_since")),
        )


@dataclass(frozen=True, slots=True)
class Change:
    before: Level
    after: Level
    reason: str
    """`limit_reached`, `fell`, `no_data`."""


def next_state(
    state: AlertState, reading: Reading, limits: Limits, *, now: datetime
) -> tuple[AlertState, Change | None]:
    if not reading.is_known:
        return _without_data(state, now)
    state = replace(state, unknown_since=None, over=_note_over(state, reading, limits, now))
    reached = _reached(state, limits, now)
    if reached > state.level:
        return replace(state, level=reached, since=now, under_since=None), Change(
            state.level, reached, "limit_reached"
        )
    return _maybe_fall(state, reading, limits, now)


def _without_data(state: AlertState, now: datetime) -> tuple[AlertState, Change | None]:
    """Holds that ran are broken: what nobody saw was not held."""
    since = state.unknown_since or now
    state = replace(state, over={}, under_since=None, unknown_since=since)
    if state.level is Level.NORMAL or now - since < GIVE_UP_AFTER:
        return state, None
    return _leave(state, Level.NORMAL, now), Change(state.level, Level.NORMAL, "no_data")


def _note_over(
    state: AlertState, reading: Reading, limits: Limits, now: datetime
) -> Mapping[Level, datetime]:
    found = {}
    for level, limit in limits.enter.items():
        value = reading.at(level)
        if value is None:
            continue
        if value >= limit:
            found[level] = state.over.get(level, now)
        elif level in state.over and value >= limits.exit_of(level):
            found[level] = state.over[level]
    return found


def _reached(state: AlertState, limits: Limits, now: datetime) -> Level:
    cooling = state.left_at is not None and now - state.left_at < limits.cool_down
    held = [
        level
        for level, since in state.over.items()
        if now - since >= limits.enter_hold and not (cooling and level <= state.left_level)
    ]
    return max(held, default=Level.NORMAL)


def _maybe_fall(
    state: AlertState, reading: Reading, limits: Limits, now: datetime
) -> tuple[AlertState, Change | None]:
    if state.level is Level.NORMAL:
        return state, None
    if not _is_below(reading, limits, state.level):
        return replace(state, under_since=None), None
    since = state.under_since or now
    if now - since < limits.exit_hold:
        return replace(state, under_since=since), None
    # What is still above its own exit stays.
    kept = [level for level in limits.enter if level < state.level and not _is_below(reading, limits, level)]
    after = max(kept, default=Level.NORMAL)
    return _leave(state, after, now), Change(state.level, after, "fell")


def _is_below(reading: Reading, limits: Limits, level: Level) -> bool:
    """A level that the limits no longer have is left; one without a value of its own is not known to be below."""
    if level not in limits.enter:
        return True
    value = reading.at(level)
    return value is not None and value < limits.exit_of(level)


def _leave(state: AlertState, after: Level, now: datetime) -> AlertState:
    return replace(
        state, level=after, since=now, under_since=None, left_level=state.level, left_at=now, over={
            level: at for level, at in state.over.items() if level <= after
        },
    )  # fmt: skip


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
