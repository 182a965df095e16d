"""Which weights a step of a rollout puts in force, and what a rollback gives back. Pure.

Weights are whole percents that sum to 100. What others share keeps the proportions that it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pool.domain.rollout import Step

Weights = dict[int, int]


@dataclass(frozen=True, slots=True)
class Split:
    """`lanes`: weights that replace the general ones in a lane."""

    weights: Weights
    lanes: dict[str, Weights]


def mix(base: Mapping[int, int], candidate: int, percent: int) -> Weights:
    """The candidate gets `percent`, the others of `base` share the rest in their proportions, by largest remainder."""
    others = {number: weight for number, weight in base.items() if number != candidate and weight > 0}
    total = sum(others.values())
    if total == 0 or percent >= 100:
        return {**dict.fromkeys(sorted(others), 0), candidate: 100}
    rest = 100 - percent
    shares = {number: weight * rest // total for number, weight in others.items()}
    by_remainder = sorted(others, key=lambda number: (-(others[number] * rest % total), number))
    for number in by_remainder[: rest - sum(shares.values())]:
        shares[number] += 1
    return {**dict(sorted(shares.items())), candidate: percent}


def split_of_step(
    base: Split, candidate: int, steps: Sequence[Step], number: int, lanes: Sequence[str]
) -> Split:
    """Of step `number`; past the last one the candidate has everything. `lanes`: all of the model. A lane keeps what
    its newest step up to this one gave it."""
    if number >= len(steps):
        return _spread(base, candidate, 100)
    reached = {lane: _percent_in(lane, steps[: number + 1]) for lane in lanes}
    if all(not step.lanes for step in steps[: number + 1]):
        return _spread(base, candidate, steps[number].weight)
    general = _percent_in("", steps[: number + 1])
    return Split(
        mix(base.weights, candidate, general),
        {
            lane: mix(base.lanes.get(lane, base.weights), candidate, percent)
            for lane, percent in reached.items()
        },
    )


def split_of_rollback(
    base: Split, now: Split, candidate: int, stable: Mapping[str, int], lanes: Sequence[str]
) -> Split:
    """The plan from before; where stable carries only a part of its weight, the candidate keeps the rest, and never
    more than it has `now`. `stable`: by lane, in percent; "" stands for the lanes that are not named."""
    general = min(now.weights.get(candidate, 0), 100 - min(stable.values(), default=100))
    kept = {
        lane: min(
            now.lanes.get(lane, now.weights).get(candidate, 0), 100 - stable.get(lane, stable.get("", 100))
        )
        for lane in lanes
    }
    if not any((general, *kept.values())):
        return base
    return Split(
        mix(base.weights, candidate, general),
        {
            lane: mix(base.lanes.get(lane, base.weights), candidate, percent)
            for lane, percent in kept.items()
            if lane in base.lanes or percent != general
        },
    )


def _spread(base: Split, candidate: int, percent: int) -> Split:
    return Split(
        mix(base.weights, candidate, percent),
        {lane: mix(weights, candidate, percent) for lane, weights in base.lanes.items()},
    )


def _percent_in(lane: str, steps: Sequence[Step]) -> int:
    return next((step.weight for step in reversed(steps) if not step.lanes or lane in step.lanes), 0)


def largest_weight(split: Split, release: int) -> int:
    """In any lane."""
    everywhere = [split.weights, *split.lanes.values()]
    return max(weights.get(release, 0) for weights in everywhere)
