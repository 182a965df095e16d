"""What is done about a broken promise, step by step, how often at most, and when it is taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from pool.domain.alerting import Level


class Step(StrEnum):
    SHED_BATCH = "shed_batch"  # Gates refuse the tier `batch`.
    NO_LONG = "no_long"  # Gates refuse long requests.
    ADMISSION_RATIO = "admission_ratio"  # Gates lower their limits by a fifth.
    CLOSE_LANE = "close_lane"  # Gates let only `vip` into the lane.
    SCALE_OUT = "scale_out"  # One replica more. Has its place here; nobody carries it out yet.
    RESTART = "restart"  # A replica drains and starts anew. As above.
    ROLL_BACK = "roll_back"  # The plan before the newest one. As above.


AVAILABLE: Final = frozenset({Step.SHED_BATCH, Step.NO_LONG, Step.ADMISSION_RATIO, Step.CLOSE_LANE})
"""What a gate can do by itself."""
VALUES: Final[Mapping[Step, float]] = {Step.ADMISSION_RATIO: 0.8}
LASTS: Final = timedelta(minutes=5)
"""A restriction ends after so long unless what called for it is measured again (FC-11)."""
RENEW_BELOW: Final = timedelta(minutes=2)
ACTING: Final = frozenset({Level.ORANGE, Level.RED})


@dataclass(frozen=True, slots=True)
class Policy:
    steps: Mapping[Level, Sequence[Step]]
    """A level's steps hold on the levels above it too."""
    max_per_hour: int = 6
    opposite_after: timedelta = timedelta(minutes=5)
    """What was begun is not taken back, what was taken back is not begun again, before this time is over."""
    dry_run: bool = False
    """Everything is decided and told, nothing is done."""
    held_until: datetime | None = None
    """An operator wants no action until then."""


@dataclass(frozen=True, slots=True)
class Past:
    """One action of the last hour, or one that still holds (`ended_at` None)."""

    step: Step
    began_at: datetime
    until: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    step: Step
    reason: str
    """`held`, `too_many`, `taken_back_lately`, `not_available`."""


@dataclass(frozen=True, slots=True)
class Decision:
    begin: tuple[Step, ...] = ()
    renew: tuple[Step, ...] = ()
    end: tuple[Step, ...] = ()
    blocked: tuple[Blocked, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Claim:
    """What one alert asks for; several may ask for the same lane. `is_measured` False: its level is one of before
    and nothing confirms it now, so it neither begins nor renews, and takes nothing back either (FC-11)."""

    level: Level
    policy: Policy
    is_measured: bool


def decide_actions(claims: Sequence[Claim], history: Sequence[Past], *, now: datetime) -> Decision:
    """For one lane. `history`: automatic actions there, of the last hour and those that still hold. Of the
    claims' limits the strictest counts; a hold of one holds the lane."""
    active = {past.step: past for past in history if past.ended_at is None}
    asked = _union(claim for claim in claims if claim.is_measured)
    if any(claim.policy.held_until is not None and now < claim.policy.held_until for claim in claims):
        return Decision(blocked=tuple(Blocked(step, "held") for step in asked if step not in active))
    kept = _union(claims)
    opposite_after = max((claim.policy.opposite_after for claim in claims), default=timedelta())
    renew = tuple(step for step in asked if step in active and active[step].until - now < RENEW_BELOW)
    end = tuple(
        step for step, past in active.items() if step not in kept and now - past.began_at >= opposite_after
    )
    left = min((claim.policy.max_per_hour for claim in claims), default=0)
    left -= sum(now - past.began_at < timedelta(hours=1) for past in history)
    begin, blocked = _begin(
        [step for step in asked if step not in active], history, left, opposite_after, now
    )
    return Decision(begin, renew, end, blocked)


def _union(claims: Iterable[Claim]) -> list[Step]:
    return list(dict.fromkeys(step for claim in claims for step in _wanted(claim.level, claim.policy)))


def _wanted(level: Level, policy: Policy) -> list[Step]:
    found = []
    for reached in sorted(ACTING):
        if reached <= level:
            found += [step for step in policy.steps.get(reached, ()) if step not in found]
    return found


def _begin(
    steps: Sequence[Step], history: Sequence[Past], left: int, opposite_after: timedelta, now: datetime
) -> tuple[tuple[Step, ...], tuple[Blocked, ...]]:
    begin: list[Step] = []
    blocked: list[Blocked] = []
    for step in steps:
        ended = [past.ended_at for past in history if past.step is step and past.ended_at is not None]
        if step not in AVAILABLE:
            blocked.append(Blocked(step, "not_available"))
        elif ended and now - max(ended) < opposite_after:
            blocked.append(Blocked(step, "taken_back_lately"))
        elif len(begin) >= left:
            blocked.append(Blocked(step, "too_many"))
        else:
            begin.append(step)
    return tuple(begin), tuple(blocked)
