"""One timed completion as a user sends it, streamed or whole, and what its refusal means.

Blocking; used by the warm-up and by the probe of liveness.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pool.domain.errors import PoolError
from pool.domain.start_errors import StartCode, StartFailure, make_failure
from workers.engines import http as engine_http

ANSWER_TOKENS = 8
WORD = " warm"


@dataclass(frozen=True, slots=True)
class WarmUpTarget:
    """`max_model_len` and `tokenizer` facts come from the engine itself when None."""

    address: str
    model: str
    engine_key: str = field(repr=False)
    max_model_len: int | None = None


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
class Prompt:
    """What to send: `words` of filler after a number that no other prompt begins with."""

    route: str
    words: int
    number: int
    stream: bool

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.route == "chat" else "/v1/completions"

    def make_body(self, model: str, *, max_tokens: int = ANSWER_TOKENS) -> dict[str, Any]:
        """The number comes first, so that no prompt shares a cached prefix with another."""
        text = f"{self.number} {time.time_ns() % 1_000_000_007}" + WORD * self.words
        body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0}
        body |= {"stream": self.stream, "ignore_eos": True}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.route == "chat":
            return body | {"messages": [{"role": "user", "content": text}]}
        return body | {"prompt": text}


@dataclass(frozen=True, slots=True)
class Timed:
    """One completion as measured here. `tokens` counts the answer's."""

    ttft_s: float
    total_s: float
    prompt_tokens: int | None
    tokens: int | None
    cached_tokens: int | None
    streamed: bool = True


@dataclass(frozen=True, slots=True)
class Conversation:
    """What other requests are likely to begin with: sent as it is, for one token, so that its prefix is cached."""

    route: str
    messages: tuple[tuple[str, str], ...]
    stream: bool = False

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.route == "chat" else "/v1/completions"

    def make_body(self, model: str) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0, "stream": False}
        if self.route == "chat":
            return body | {"messages": [{"role": role, "content": text} for role, text in self.messages]}
        return body | {"prompt": "\n".join(text for _, text in self.messages)}


def probe_engine(
    address: str, *, model: str, engine_key: str, timeout_s: float, route: str = "completions"
) -> bool:
    """One token, for liveness. False: no 200 within the time."""
    prompt = Prompt(route, words=1, number=0, stream=False)
    body = prompt.make_body(model, max_tokens=1)
    try:
        answer = engine_http.call(address, prompt.path, engine_key=engine_key, body=body, timeout_s=timeout_s)
    except engine_http.EngineUnreachable:
        return False
    return answer.status == 200


def time_completion(
    target: WarmUpTarget, prompt: Prompt | Conversation, *, limit_s: float, cancelled: threading.Event
) -> Timed:
    """Raises WarmUpFailed for anything but a complete answer, WarmUpCancelled between events."""
    connection = engine_http.open_connection(target.address, timeout_s=limit_s)
    try:
        with engine_http.guard(prompt.path):
            return _time_request(target, prompt, connection, cancelled)
    except (engine_http.EngineUnreachable, ValueError) as exc:
        words = "The engine gave no readable answer to a warm-up completion."
        raise WarmUpFailed(make_failure(StartCode.ENGINE_DIED, words, limit_s=limit_s)) from exc
    finally:
        connection.close()


def _time_request(
    target: WarmUpTarget,
    prompt: Prompt | Conversation,
    connection: http.client.HTTPConnection,
    cancelled: threading.Event,
) -> Timed:
    started = time.monotonic()
    body = prompt.make_body(target.model)
    response = engine_http.send(connection, prompt.path, engine_key=target.engine_key, body=body)
    if response.status != 200:
        raise WarmUpFailed(read_refusal(response.status, response.read(65536), prompt.path))
    if prompt.stream:
        return _time_stream(response, prompt, started, cancelled)
    content = json.loads(response.read(engine_http.MAX_ANSWER_BYTES))
    took = time.monotonic() - started
    return _timed(took, took, content.get("usage"), streamed=False)


def _time_stream(
    response: http.client.HTTPResponse,
    prompt: Prompt | Conversation,
    started: float,
    cancelled: threading.Event,
) -> Timed:
    first: float | None = None
    usage: dict[str, Any] | None = None
    ended = False
    for event in _events(response, cancelled):
        if event == "[DONE]":
            ended = True
            continue
        content = json.loads(event)
        if "error" in content:
            raise WarmUpFailed(read_refusal(500, event.encode(), prompt.path))
        if first is None and _has_text(content):
            first = time.monotonic() - started
        usage = content.get("usage") or usage
    took = time.monotonic() - started
    if not ended:
        raise WarmUpFailed(
            make_failure(StartCode.ENGINE_DIED, "A streamed warm-up completion was cut before its end.")
        )
    return _timed(first if first is not None else took, took, usage)


def _events(response: http.client.HTTPResponse, cancelled: threading.Event) -> Iterator[str]:
    for event in engine_http.read_events(response):
        if cancelled.is_set():
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


def _timed(ttft_s: float, total_s: float, usage: dict[str, Any] | None, *, streamed: bool = True) -> Timed:
    usage = usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return Timed(
        ttft_s=ttft_s,
        total_s=total_s,
        prompt_tokens=usage.get("prompt_tokens"),
        tokens=usage.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens"),
        streamed=streamed,
    )
