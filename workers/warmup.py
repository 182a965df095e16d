"""The warm-up of an engine: real completions as users send them, before it may take traffic.

Per lane: prompts no longer than the engine holds, nor than what its first measured prefill does in 2 s;
streamed and whole; on each route that the release claims; until the time to first token levels off, within a
budget.
Blocking; runs in a thread and ends soon after `cancelled` is set.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pool.domain.start_errors import StartCode, make_failure
from workers.completions import (
    ANSWER_TOKENS,
    Conversation,
    Prompt,
    Timed,
    WarmUpCancelled,
    WarmUpFailed,
    WarmUpTarget,
    probe_engine,
    time_completion,
)
from workers.engines import http as engine_http

__all__ = [
    "WarmUpCancelled",
    "WarmUpFailed",
    "WarmUpFigures",
    "WarmUpLane",
    "WarmUpRecipe",
    "WarmUpTarget",
    "probe_engine",
    "warm_up",
]

MAX_REQUESTS = 50
FIRST_PROMPT_WORDS = 32
# Assumed of an engine that does not say its own context length.
SHORT_CONTEXT_TOKENS = 256
# A tokenizer of bytes makes five tokens of the word; twice that is safe for the first guess.
ROOMY_TOKENS_PER_WORD = 10.0
# No single warm-up prefill may take longer than this; field reports of cold starts end well within.
LONGEST_PREFILL_S = 2.0
# Three times to first token within 15 % of their median are a plateau: noise of a busy host is about 10 %.
PLATEAU_COUNT = 3
PLATEAU_RATIO = 0.15
REQUEST_LIMIT_S = 60.0
# The first request compiles kernels and may take long; it is bounded by this alone.
FIRST_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class WarmUpLane:
    """`max_prompt_tokens` None: as long as the engine holds."""

    name: str
    max_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class WarmUpRecipe:
    """`routes`: those that users may take, of `chat` and `completions`."""

    lanes: tuple[WarmUpLane, ...] = (WarmUpLane("all"),)
    routes: tuple[str, ...] = ("chat", "completions")
    per_lane: int = 8
    budget_s: float = 120.0
    max_requests: int = MAX_REQUESTS
    max_prefill_s: float = LONGEST_PREFILL_S
    hot: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Conversations whose prefixes are to be cached before the first user request: `(role, content)`."""


@dataclass(frozen=True, slots=True)
class LaneFigures:
    lane: str
    requests: int
    prompt_tokens: int
    first_ttft_s: float
    ttft_s: float
    plateau: bool
    ttfts_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WarmUpFigures:
    """`reason` is `warm_up_cut` when the budget ended first, else empty. Rates are of uncached prompts."""

    requests: int
    took_s: float
    first_answer_s: float
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    lanes: tuple[LaneFigures, ...]
    routes: tuple[str, ...]
    reason: str = ""
    hot_prefixes: int = 0
    """Conversations that were replayed, so that their prefixes are cached."""
    hot_refused: int = 0
    """Those that the engine refused, as too long, or did not answer within the budget."""


@dataclass(slots=True)
class _Run:
    target: WarmUpTarget
    recipe: WarmUpRecipe
    cancelled: threading.Event
    deadline: float
    clock: Callable[[], float]
    sent: int = 0
    prefill_rate: float | None = None
    tokens_per_word: float = 1.0
    base_tokens: float = 16.0
    decode_rates: list[float] = field(default_factory=list)
    first_answer_s: float = 0.0
    hot_refused: int = 0

    def time_is_up(self) -> bool:
        return self.clock() >= self.deadline or self.sent >= self.recipe.max_requests


def warm_up(
    target: WarmUpTarget,
    recipe: WarmUpRecipe,
    *,
    cancelled: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> WarmUpFigures:
    """Raises WarmUpFailed, WarmUpCancelled. A cut by the budget is no failure."""
    started = clock()
    run = _Run(target, recipe, cancelled or threading.Event(), started + recipe.budget_s, clock)
    held = target.max_model_len or _read_max_model_len(run)
    _try_routes(run)
    _measure_prefill(run, held)
    times = _warm_lanes(run, held)
    replayed = _replay_hot(run)
    cut = len(recipe.hot) > replayed + run.hot_refused or any(
        len(taken) < recipe.per_lane for taken in times.values()
    )
    return WarmUpFigures(
        requests=run.sent,
        took_s=clock() - started,
        first_answer_s=run.first_answer_s,
        prefill_tokens_per_s=run.prefill_rate,
        decode_tokens_per_s=statistics.median(run.decode_rates) if run.decode_rates else None,
        lanes=tuple(_lane_figures(name, taken) for name, taken in times.items() if taken),
        routes=recipe.routes,
        reason="warm_up_cut" if cut and run.time_is_up() else "",
        hot_prefixes=replayed,
        hot_refused=run.hot_refused,
    )


def _replay_hot(run: _Run) -> int:
    """After the lanes, whose prompts would push the blocks out again. One that is refused or slow fails nothing."""
    replayed = 0
    for messages in run.recipe.hot:
        if run.clock() >= run.deadline:
            break
        if run.cancelled.is_set():
            raise WarmUpCancelled("The warm-up was cancelled.")
        run.sent += 1
        conversation = Conversation(run.recipe.routes[0], messages)
        limit_s = max(5.0, min(REQUEST_LIMIT_S, run.deadline - run.clock() + 10.0))
        try:
            time_completion(run.target, conversation, limit_s=limit_s, cancelled=run.cancelled)
        except WarmUpFailed:
            run.hot_refused += 1
        else:
            replayed += 1
    return replayed


def _read_max_model_len(run: _Run) -> int:
    target = run.target
    try:
        answer = engine_http.call(target.address, "/v1/models", engine_key=target.engine_key, timeout_s=10.0)
        return int(answer.json()["data"][0]["max_model_len"])
    except engine_http.EngineUnreachable as exc:
        raise WarmUpFailed(
            make_failure(StartCode.ENGINE_DIED, "The engine does not list its model.")
        ) from exc
    except (KeyError, IndexError, TypeError, ValueError):
        return SHORT_CONTEXT_TOKENS


def _try_routes(run: _Run) -> None:
    """Each claimed route once whole and once streamed; the first answer may compile for minutes."""
    for route in run.recipe.routes:
        for stream in (False, True):
            limit = FIRST_LIMIT_S if run.sent == 0 else REQUEST_LIMIT_S
            timed = _send(run, route, words=1, stream=stream, limit_s=limit)
            run.first_answer_s = run.first_answer_s or timed.total_s
            run.base_tokens = max(run.base_tokens, float(timed.prompt_tokens or 0))


def _measure_prefill(run: _Run, held: int) -> None:
    """Tokens a word and tokens per second of one uncached prompt: long enough to show, short for any host."""
    room = (held - ANSWER_TOKENS - run.base_tokens) / ROOMY_TOKENS_PER_WORD
    words = max(1, min(FIRST_PROMPT_WORDS, int(room)))
    timed = _send(run, run.recipe.routes[-1], words=words, stream=True)
    if timed.prompt_tokens and timed.ttft_s > 0:
        run.prefill_rate = timed.prompt_tokens / timed.ttft_s
        run.tokens_per_word = max(0.2, timed.prompt_tokens / words)


def _warm_lanes(run: _Run, held: int) -> dict[str, list[Timed]]:
    """One request per lane in turn, so that a budget that ends early has touched each length."""
    times: dict[str, list[Timed]] = {lane.name: [] for lane in run.recipe.lanes}
    open_lanes = list(run.recipe.lanes)
    while open_lanes:
        for lane in list(open_lanes):
            taken = times[lane.name]
            if run.time_is_up():
                return times
            if _is_enough(run.recipe, taken):
                open_lanes.remove(lane)
                continue
            limit = min(lane.max_prompt_tokens or held, held - ANSWER_TOKENS - 1)
            route = run.recipe.routes[len(taken) % len(run.recipe.routes)]
            timed = _send(run, route, words=_words_for(run, limit), stream=len(taken) % 4 != 3)
            taken.append(timed)
            if timed.prompt_tokens and timed.ttft_s > 0 and timed.streamed and not timed.cached_tokens:
                run.prefill_rate = timed.prompt_tokens / timed.ttft_s
    return times


def _lane_figures(name: str, times: Sequence[Timed]) -> LaneFigures:
    ttfts = _streamed(times) or [timed.ttft_s for timed in times]
    return LaneFigures(
        lane=name,
        requests=len(times),
        prompt_tokens=max(timed.prompt_tokens or 0 for timed in times),
        first_ttft_s=ttfts[0],
        ttft_s=statistics.median(ttfts[-PLATEAU_COUNT:]),
        plateau=is_level(ttfts),
        ttfts_s=tuple(round(value, 4) for value in ttfts),
    )


def _words_for(run: _Run, limit_tokens: int) -> int:
    """As long as the lane allows, but no longer than a prefill of the allowed length at the measured rate."""
    if run.prefill_rate is not None:
        limit_tokens = min(limit_tokens, int(run.prefill_rate * run.recipe.max_prefill_s))
    return max(1, int((limit_tokens - run.base_tokens) / run.tokens_per_word))


def _is_enough(recipe: WarmUpRecipe, times: Sequence[Timed]) -> bool:
    if len(times) < recipe.per_lane:
        return False
    share = recipe.max_requests // max(1, len(recipe.lanes))
    return is_level(_streamed(times)) or len(times) >= max(share, recipe.per_lane)


def _streamed(times: Sequence[Timed]) -> list[float]:
    """A whole answer shows no first token: its time is left out."""
    return [timed.ttft_s for timed in times if timed.streamed]


def is_level(ttfts: Sequence[float]) -> bool:
    """The last few times to first token lie within PLATEAU_RATIO of their median (or within 5 ms)."""
    last = ttfts[-PLATEAU_COUNT:]
    if len(last) < PLATEAU_COUNT:
        return False
    middle = statistics.median(last)
    return all(abs(one - middle) <= max(0.005, PLATEAU_RATIO * middle) for one in last)


def _send(run: _Run, route: str, *, words: int, stream: bool, limit_s: float | None = None) -> Timed:
    if run.cancelled.is_set():
        raise WarmUpCancelled("The warm-up was cancelled.")
    run.sent += 1
    limit = limit_s or max(5.0, min(REQUEST_LIMIT_S, run.deadline - run.clock() + 10.0))
    prompt = Prompt(route, words, run.sent, stream)
    timed = time_completion(run.target, prompt, limit_s=limit, cancelled=run.cancelled)
    if timed.streamed and timed.tokens and timed.tokens > 1 and timed.total_s > timed.ttft_s:
        run.decode_rates.append((timed.tokens - 1) / (timed.total_s - timed.ttft_s))
    return timed
