"""How soon a model's traffic can be back where it came from, and why not sooner. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from statistics import median
from typing import Final

APPLY_BOUND_S: Final = 2.0
"""Gateways serve a new plan within it, without Redis too; where no change was measured, this is what is known."""
_STEP_S: Final = 0.1
"""Shorter is not told apart: a click's own way takes as long."""


class State(StrEnum):
    WARM = "warm"
    """Every replica that is wished is ready: only the plan has to reach the gateways."""
    STARTING = "starting"
    """Some of its replicas are on their way up."""
    COLD = "cold"
    """Weights must be loaded first."""
    IMPOSSIBLE = "impossible"
    """It cannot start as things are; an operator must mend something first."""
    NOWHERE = "nowhere"
    """There is no plan to go back to."""


@dataclass(frozen=True, slots=True)
class Target:
    """A release that the plan to go back to sends requests to. `starting_s`: how long each replica that comes up has
    been on its way. `start_s`: a measured start, the median of `starts`; None: never measured. `barred`: why it cannot
    start, empty: it can."""

    number: int
    percent: int
    wanted: int
    ready: int
    starting_s: tuple[float, ...] = ()
    start_s: float | None = None
    starts: int = 0
    barred: str = ""


@dataclass(frozen=True, slots=True)
class Return:
    """`seconds` None: not known. `applies_s` is in it."""

    state: State
    release: int | None
    seconds: float | None
    reason: str
    wanted: int = 0
    ready: int = 0
    start_s: float | None = None
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Applies:
    """How long gateways took to serve the newest table. `seconds` None: nobody has shown it. `gateways`: that live;
    `silent`: that have said nothing for some seconds, and may serve the old plan on."""

    seconds: float | None = None
    gateways: int = 0
    silent: int = 0

    @property
    def bound_s(self) -> float:
        return APPLY_BOUND_S if self.seconds is None else max(_STEP_S, ceil(self.seconds / _STEP_S) * _STEP_S)


NOWHERE_TO: Final = Return(State.NOWHERE, None, None, "no older plan")
_ORDER: Final = (State.WARM, State.STARTING, State.COLD, State.IMPOSSIBLE)


def judge_return(targets: Sequence[Target], applies: Applies = Applies()) -> Return:
    """To the release with the most weight, as soon as the slowest of them is there; what is not known takes longer than
    what is. Empty: nowhere."""
    if not targets:
        return NOWHERE_TO
    parts = [(_judge_one(target, applies), target) for target in targets]
    slowest, about = max(parts, key=lambda part: _slowness(part[0]))
    main = max(targets, key=lambda target: (target.percent, -target.number))
    if about.number == main.number or slowest.state is State.WARM:
        return replace(slowest, release=main.number)
    reason = f"release {about.number} with {about.percent} %: {slowest.reason or slowest.state}"
    return replace(slowest, release=main.number, reason=reason)


def _slowness(part: Return) -> tuple[int, bool, float]:
    return _ORDER.index(part.state), part.seconds is None, part.seconds or 0.0


def median_start(starts_s: Sequence[float]) -> float | None:
    return median(starts_s) if starts_s else None


def _judge_one(target: Target, applies: Applies) -> Return:
    state, seconds, reason = _where(target)
    whole = None if seconds is None else round(seconds + applies.bound_s, 1)
    return Return(
        state, target.number, whole, reason, target.wanted, target.ready, target.start_s, target.starts
    )


def _where(target: Target) -> tuple[State, float | None, str]:
    """With the seconds until it could answer, beside those for the plan."""
    if target.ready and target.ready >= target.wanted:
        return State.WARM, 0.0, ""
    there = f"{target.ready} of {target.wanted} replicas ready" if target.wanted else ""
    if target.starting_s:
        return State.STARTING, _left_s(target), there
    if target.barred:
        return State.IMPOSSIBLE, None, target.barred
    measured = (
        f"measured start {in_words(target.start_s)}"
        if target.start_s is not None
        else "its start was never measured"
    )
    missing = f"{there}; the rest must be loaded" if target.ready else "weights must be loaded"
    wished = "" if target.wanted else "; none of its replicas is wished"
    return State.COLD, target.start_s, f"{missing} ({measured}){wished}"


def _left_s(target: Target) -> float | None:
    """Until the last one is there; None: no start was measured, or this one takes longer than the measured ones."""
    if target.start_s is None:
        return None
    left_s = target.start_s - min(target.starting_s)
    return left_s if left_s > 0 else None


def in_words(seconds: float) -> str:
    """“0.1 s”, “40 s”, “5 min 40 s”, “6 min”, “2 h 10 min”."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    large, small, names = (
        (*divmod(whole, 60), ("min", "s")) if whole < 7200 else (*divmod(whole // 60, 60), ("h", "min"))
    )
    return f"{large} {names[0]}{f' {small} {names[1]}' if small else ''}"
