"""Lanes of a model: classes of requests by prompt length, each with its own queue and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pool.domain.errors import PoolError
from pool.domain.names import check_name

_DEFAULTS = (
    ("short", 4_096, 16, 32, 300, 4),
    ("mid", 16_384, 4, 8, 800, 2),
    ("long", None, 1, 2, 2_000, 1),
)
"""Name, bound in prompt tokens, smallest part of the context that the bound may be, concurrency, TTFT in
ms, weight.

4,096 and 16,384 split a public long-context chat trace 34 / 43 / 23 %; 4k / 32k would leave 7 % in the last.
"""


class InvalidLanes(PoolError):
    code: ClassVar[str] = "invalid_lanes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    name: str
    max_prompt_tokens: int | None
    """Prompts below this length belong to the lane; None: no bound (the last lane)."""
    concurrency: int
    """Requests at once per replica at the start, then adapted."""
    ttft_target_ms: int
    weight: int = 1
    """Share of a replica that serves several lanes."""


def default_lanes(context_tokens: int | None) -> tuple[Lane, ...]:
    """Three lanes, their bounds clipped so that each keeps a part of a short context; None: context not
    known.

    A context of 8,192 tokens gives 512 / 2,048. A context too short to be split has one lane.
    """
    if context_tokens is not None and context_tokens < 64:
        return (_default(_DEFAULTS[0], None),)
    lanes = []
    for default in _DEFAULTS:
        bound, part = default[1], default[2]
        if bound is not None and context_tokens is not None:
            bound = min(bound, context_tokens // part)
        lanes.append(_default(default, bound))
    return tuple(lanes)


def check_lanes(lanes: Sequence[Lane]) -> tuple[Lane, ...]:
    """The lanes, shortest first as given; raises InvalidLanes with the rule that they break."""
    if not lanes:
        raise InvalidLanes("A model needs at least one lane.")
    for lane in lanes:
        check_name("lane", lane.name)
        if min(lane.concurrency, lane.ttft_target_ms, lane.weight) < 1:
            raise InvalidLanes(f"Lane {lane.name}: concurrency, TTFT target and weight are at least 1.")
    if len({lane.name for lane in lanes}) < len(lanes):
        raise InvalidLanes("Two lanes have the same name.")
    bounds = [lane.max_prompt_tokens for lane in lanes]
    if bounds[-1] is not None or None in bounds[:-1]:
        raise InvalidLanes("The last lane, and no other, has no bound: it takes all longer prompts.")
    known = [0, *(bound for bound in bounds if bound is not None)]
    if any(low >= high for low, high in zip(known, known[1:], strict=False)):
        raise InvalidLanes("The bounds of the lanes must rise from lane to lane.")
    return tuple(lanes)


def lane_of(prompt_tokens: int, lanes: Sequence[Lane]) -> Lane:
    """The lane that a prompt belongs to; `lanes` have passed check_lanes."""
    for lane in lanes[:-1]:
        if lane.max_prompt_tokens is not None and prompt_tokens < lane.max_prompt_tokens:
            return lane
    return lanes[-1]


def _default(default: tuple[str, int | None, int, int, int, int], bound: int | None) -> Lane:
    name, _, _, concurrency, ttft_target_ms, weight = default
    return Lane(
        name=name,
        max_prompt_tokens=bound,
        concurrency=concurrency,
        ttft_target_ms=ttft_target_ms,
        weight=weight,
    )
