"""An hour of requests to two releases for the verdict's benchmark: day shape, bursts, sessions, drifting load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from pool.domain.strata import BLOCK_S, Sample

LANES: Final = ("short", "mid", "long")
_TTFT_S: Final = np.log([0.2, 0.8, 2.5])
_OUTPUT: Final = np.log([60.0, 120.0, 250.0])
_MIX, _SHIFTED_MIX = (0.70, 0.22, 0.08), (0.35, 0.30, 0.35)
_SESSION_REQUESTS, _PAUSE_S = 4.0, 25.0
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """`slow`: by lane, the factor on the candidate's TTFT. `slow_all`: on its time per token too. `errors`: shares of
    (stable, candidate). `own_noise`: of each release, in log units per 10 s, with a memory of 50 s. `shift`: the mix of
    lanes, caches and lengths changes at half time, and the candidate's weight differs by lane."""

    slow: Mapping[str, float] = field(default_factory=dict)
    slow_all: float = 1.0
    errors: tuple[float, float] = (0.005, 0.005)
    own_noise: float = 0.0
    shift: bool = False
    seconds: int = 3600
    per_s: float = 5.0
    weight: float = 0.5


Blocks = dict[int, list[Sample]]


def make_blocks(seed: int, scenario: Scenario) -> Blocks:
    """By number of the 10 s block in which the request ended."""
    draw = np.random.default_rng(seed)
    starts = _draw_sessions(draw, scenario)
    sizes = draw.geometric(1 / _SESSION_REQUESTS, len(starts))
    session = np.repeat(np.arange(len(starts)), sizes)
    turn = np.arange(len(session)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    pauses = np.where(turn > 0, draw.exponential(_PAUSE_S, len(session)), 0.0)
    total = np.cumsum(pauses)
    first = np.repeat(total[np.cumsum(sizes) - sizes], sizes)
    at = np.repeat(starts, sizes) + total - first
    lane = _draw_lanes(draw, starts, scenario)
    chance = np.array([1.0, 0.6, 0.3])[lane] if scenario.shift else np.ones(len(starts))
    candidate = draw.random(len(starts)) < scenario.weight * chance
    mood = draw.normal(0, 0.35, len(starts))
    kept = at < scenario.seconds
    session, turn, at = session[kept], turn[kept], at[kept]
    return _make_samples(draw, scenario, session, turn, at, lane[session], candidate[session], mood[session])


def _draw_sessions(draw: np.random.Generator, scenario: Scenario) -> Values:
    """Day shape squeezed into the hour, and bursts of three times the load."""
    times = np.arange(scenario.seconds, dtype=float)
    shape = 1 + 0.4 * np.sin(2 * math.pi * times / 3600 + draw.random() * 2 * math.pi)
    shape = shape * np.where((times // 200 + draw.integers(7)) % 7 == 3, 3.0, 0.75)
    counts = draw.poisson(scenario.per_s / _SESSION_REQUESTS * shape)
    return np.repeat(times, counts) + draw.random(int(counts.sum()))


def _draw_lanes(draw: np.random.Generator, starts: Values, scenario: Scenario) -> npt.NDArray[np.int64]:
    lane = draw.choice(3, len(starts), p=_MIX)
    if scenario.shift:
        late = starts >= scenario.seconds / 2
        lane[late] = draw.choice(3, int(late.sum()), p=_SHIFTED_MIX)
    return lane


def _drift(draw: np.random.Generator, blocks: int, memory: float, noise: float) -> Values:
    """A first-order autoregression, one value per block."""
    steps, level = draw.normal(0, noise, blocks), 0.0
    values = np.empty(blocks)
    for number in range(blocks):
        level = memory * level + steps[number]
        values[number] = level
    return values


def _make_samples(
    draw: np.random.Generator,
    scenario: Scenario,
    session: npt.NDArray[np.int64],
    turn: npt.NDArray[np.int64],
    at: Values,
    lane: npt.NDArray[np.int64],
    candidate: npt.NDArray[np.bool_],
    mood: Values,
) -> Blocks:
    size, blocks = len(at), scenario.seconds // BLOCK_S + 1
    load = _drift(draw, blocks, 0.9, 0.15)
    own = np.stack([_drift(draw, blocks, 0.8, scenario.own_noise) for _ in range(2)])
    block = (at // BLOCK_S).astype(int)
    common = mood + load[block] + own[candidate.astype(int), block]
    is_cached = (turn > 0) & (draw.random(size) < np.where(_is_late(at, scenario), 0.4, 0.8))
    slow = np.ones(size)
    for name, factor in scenario.slow.items():
        slow[(lane == LANES.index(name)) & candidate] = factor
    everywhere = np.where(candidate, scenario.slow_all, 1.0)
    ttft = np.exp(_TTFT_S[lane] - 0.7 * is_cached + common + draw.normal(0, 0.45, size)) * slow * everywhere
    longer = np.where(_is_late(at, scenario), 0.5, 0.0)
    output = np.maximum(1, np.exp(_OUTPUT[lane] + longer + draw.normal(0, 0.8, size))).astype(int)
    itl = 0.03 * np.exp(0.5 * common + draw.normal(0, 0.2, size)) * everywhere
    share = np.where(candidate, scenario.errors[1], scenario.errors[0]) * np.exp(load[block] - 0.059)
    is_error, is_cut = draw.random(size) < share, draw.random(size) < 0.001
    flaws = draw.random((3, size)) < np.array([[0.002], [0.005], [0.03]])
    ended = ((at + np.where(is_error, 0.1, ttft + itl * output)) // BLOCK_S).astype(int)
    made: Blocks = {}
    for place in range(size):
        made.setdefault(int(ended[place]), []).append(
            Sample(
                candidate=bool(candidate[place]),
                lane=LANES[lane[place]],
                session=int(session[place]),
                cached_ratio=0.8 if is_cached[place] else 0.0,
                output_tokens=int(output[place]),
                error=bool(is_error[place]),
                interrupted=bool(is_cut[place]) and not is_error[place],
                ttft_s=float(ttft[place]),
                itl_s=float(itl[place]),
                per_token_s=float((ttft[place] + itl[place] * output[place]) / output[place]),
                flags=_FLAGS[int(flaws[0, place]) + 2 * int(flaws[1, place]) + 4 * int(flaws[2, place])],
            )
        )
    return made


_FLAGS: Final = [
    frozenset(name for bit, name in enumerate(("empty", "repeated", "cut_by_length")) if number >> bit & 1)
    for number in range(8)
]


def _is_late(at: Values, scenario: Scenario) -> npt.NDArray[np.bool_]:
    return np.full(len(at), scenario.shift) & (at >= scenario.seconds / 2)
