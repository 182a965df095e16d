"""The warm-up of an engine: real completions as users send them, before it may take traffic.

Per lane: prompts no longer than the engine holds, nor than what its first measured prefill does in 2 s;
streamed and whole; on each route that the release claims; until the time to first token levels off, within a
budget.
Blocking; runs in a thread and ends soon after `cancelled` is set.
"""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pool.domain.errors import PoolError
from pool.domain.start_errors import StartCode, StartFailure, make_failure
from workers.engines import http as engine_http

MAX_REQUESTS = 50
FIRST_PROMPT_WORDS = 32
# Assumed of an engine that does not say its own context length.
SHORT_CONTEXT_TOKENS = 256
# A tokenizer of bytes makes five tokens of the word; twice that is safe for the first guess.
ROOMY_TOKENS_PER_WORD = 10.0
# No single warm-up prefill may take longer than this; field reports of cold starts end well within.
LONGEST_PREFILL_S = 2.0
ANSWER_TOKENS = 8
# Three times to first token within 15 % of their median are a plateau: noise of a busy host is about 10 %.
PLATEAU_COUNT = 3
PLATEAU_RATIO = 0.15
REQUEST_LIMIT_S = 60.0
# The first request compiles kernels and may take long; it is bounded by this alone.
FIRST_LIMIT_S = 300.0
WORD = " warm"


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


@dataclass(frozen=True, slots=True)
class WarmUpTarget:
    """`max_model_len` and `tokenizer` facts come from the engine itself when None."""

    address: str
    model: str
    engine_key: str = field(repr=False)
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class LaneFigures:
    lane: str
    requests: int
    prompt_tokens: int
    first_ttft_s: float
    ttft_s: float
    plateau: bool


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


class WarmUpFailed(PoolError):
    """`failure` says whether time heals it."""

    code: ClassVar[str] = "warm_up_failed"

    def __init__(self, failure: StartFailure) -> None:
        super().__init__(failure.message, code=failure.code)
        self.failure = failure


class WarmUpCancelled(PoolError):
    """Somebody asked the worker to stop warming."""

    code: ClassVar[str] = "warm_up_cancelled"


@dataclass(frozen=True, slots=True)
class Timed:
    """One completion as measured here. `tokens` counts the answer's."""

    ttft_s: float
    total_s: float
    prompt_tokens: int | None
    tokens: int | None
    cached_tokens: int | None
    streamed: bool = True


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
    cut = any(len(taken) < recipe.per_lane for taken in times.values())
    return WarmUpFigures(
        requests=run.sent,
        took_s=clock() - started,
        first_answer_s=run.first_answer_s,
        prefill_tokens_per_s=run.prefill_rate,
        decode_tokens_per_s=statistics.median(run.decode_rates) if run.decode_rates else None,
        lanes=tuple(_lane_figures(name, taken) for name, taken in times.items() if taken),
        routes=recipe.routes,
        reason="warm_up_cut" if cut and run.time_is_up() else "",
    )


def probe_engine(
    address: str, *, model: str, engine_key: str, timeout_s: float, route: str = "completions"
) -> bool:
    """One token, for liveness. False: no 200 within the time."""
    target = WarmUpTarget(address, model, engine_key)
    body = _body(target, route, words=1, seed=0, stream=False) | {"max_tokens": 1}
    try:
        answer = engine_http.call(
            address, _path(route), engine_key=engine_key, body=body, timeout_s=timeout_s
        )
    except engine_http.EngineUnreachable:
        return False
    return answer.status == 200


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
    body = _body(run.target, route, words=words, seed=run.sent, stream=stream)
    limit = limit_s or max(5.0, min(REQUEST_LIMIT_S, run.deadline - run.clock() + 10.0))
    connection = engine_http.open_connection(run.target.address, timeout_s=limit)
    try:
        with engine_http.guard(_path(route)):
            timed = _time_request(run, connection, _path(route), body)
    except engine_http.EngineUnreachable as exc:
        raise WarmUpFailed(
            make_failure(
                StartCode.ENGINE_DIED,
                "The engine gave no answer to a warm-up completion.",
                route_seconds=limit,
            )
        ) from exc
    finally:
        connection.close()
    if timed.tokens and timed.tokens > 1 and timed.total_s > timed.ttft_s and stream:
        run.decode_rates.append((timed.tokens - 1) / (timed.total_s - timed.ttft_s))
    return timed


def _time_request(
    run: _Run, connection: http.client.HTTPConnection, path: str, body: dict[str, Any]
) -> Timed:
    started = run.clock()
    response = engine_http.send(connection, path, engine_key=run.target.engine_key, body=body)
    if response.status != 200:
        raise WarmUpFailed(read_refusal(response.status, response.read(65536), path))
    if not body["stream"]:
        content = json.loads(response.read(engine_http.MAX_ANSWER_BYTES))
        took = run.clock() - started
        return replace(_timed(took, took, content.get("usage")), streamed=False)
    return _time_stream(run, response, started, path)


def _time_stream(run: _Run, response: http.client.HTTPResponse, started: float, path: str) -> Timed:
    first: float | None = None
    usage: dict[str, Any] | None = None
    ended = False
    for event in _events(run, response):
        if event == "[DONE]":
            ended = True
            continue
        content = json.loads(event)
        if "error" in content:
            raise WarmUpFailed(read_refusal(500, event.encode(), path))
        if first is None and _has_text(content):
            first = run.clock() - started
        usage = content.get("usage") or usage
    took = run.clock() - started
    if not ended:
        raise WarmUpFailed(
            make_failure(StartCode.ENGINE_DIED, "A streamed warm-up completion was cut before its end.")
        )
    return _timed(first if first is not None else took, took, usage)


def _events(run: _Run, response: http.client.HTTPResponse) -> Iterator[str]:
    for event in engine_http.read_events(response):
        if run.cancelled.is_set():
            raise WarmUpCancelled("The warm-up was cancelled.")
        yield event


def _has_text(event: dict[str, Any]) -> bool:
    for choice in event.get("choices", ()):
        delta = choice.get("delta")
        if delta is None or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
            return True
    return False


def read_refusal(status: int, body: bytes, path: str) -> StartFailure:
    """Why a warm-up completion was refused. Without a template the chat route answers 400 (FC-75)."""
    try:
        error = json.loads(body)["error"]
        message = str(error.get("message", "") if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        message = ""
    short = message.split("\n", 1)[0][:300]
    if status == 400 and "chat template" in message.lower():
        words = "The model brings no chat template, and the release claims the chat route."
        return make_failure(StartCode.NO_CHAT_TEMPLATE, words, status=status)
    if status == 400:
        words = f"The engine refused a warm-up completion on {path}: {short}"
        return make_failure(StartCode.BAD_ARGUMENT, words, status=status)
    words = f"The engine answered {status} to a warm-up completion on {path}: {short}"
    return make_failure(StartCode.ENGINE_DIED, words, status=status)


def _timed(ttft_s: float, total_s: float, usage: dict[str, Any] | None) -> Timed:
    usage = usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return Timed(
        ttft_s=ttft_s,
        total_s=total_s,
        prompt_tokens=usage.get("prompt_tokens"),
        tokens=usage.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens"),
    )


def _path(route: str) -> str:
    return "/v1/chat/completions" if route == "chat" else "/v1/completions"


def _body(target: WarmUpTarget, route: str, *, words: int, seed: int, stream: bool) -> dict[str, Any]:
    """The number comes first, so that no prompt shares a cached prefix with another."""
    text = f"{seed} {time.time_ns() % 1_000_000_007}" + WORD * words
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if route == "chat":
        return body | {"messages": [{"role": "user", "content": text}]}
    return body | {"prompt": text}
