"""One golden prompt, asked of an engine at temperature 0, and the log-probability of the expected answer there.

Blocking, whole answers, past the gateway: nothing of it counts in any statistic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pool.domain.golden import Given, Question
from workers import patterns
from workers.engines import http as engine_http

REQUEST_LIMIT_S: Final = 60.0
TEXT_CHARACTERS: Final = 8_000
SEED: Final = 20_240_501


@dataclass(frozen=True, slots=True)
class Target:
    """`route`: chat, or completions of what brings no chat template."""

    address: str
    model: str
    engine_key: str = field(repr=False)
    route: str = "chat"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.route == "chat" else "/v1/completions"


@dataclass(frozen=True, slots=True)
class _Answer:
    """`prompt_tokens` None: the engine did not say."""

    text: str
    prompt_tokens: int | None
    logprobs: Sequence[float | None] | None


class Refused(Exception):
    """The engine answers, with something else than an answer; in words."""


def ask(target: Target, question: Question, *, limit_s: float = REQUEST_LIMIT_S) -> Given:
    """Raises EngineUnreachable where nobody answered: that says nothing of the answers."""
    try:
        answer = _complete(target, question.messages, limit_s, max_tokens=question.max_tokens)
        given = Given(text=answer.text[:TEXT_CHARACTERS])
        if question.match == "regex":
            return replace(given, matched=patterns.search(question.expected, given.text))
        if question.match == "logprob" and question.expected:
            return replace(given, mean_logprob=_score(target, question, answer, limit_s))
        return given
    except Refused as exc:
        return Given(refused=str(exc))


def record(target: Target, question: Question, *, limit_s: float = REQUEST_LIMIT_S) -> Given:
    """What it answers, as the answer to expect; of `logprob` also how probable that is. Raises EngineUnreachable."""
    try:
        answer = _complete(target, question.messages, limit_s, max_tokens=question.max_tokens)
        given = Given(text=answer.text[:TEXT_CHARACTERS])
        if question.match != "logprob" or not given.text:
            return given
        scored = replace(question, expected=given.text)
        return replace(given, mean_logprob=_score(target, scored, answer, limit_s))
    except Refused as exc:
        return Given(refused=str(exc))


def _score(target: Target, question: Question, plain: _Answer, limit_s: float) -> float | None:
    """Mean over the tokens that the expected text adds to the prompt. Templates may trim it, so it is trimmed here."""
    messages = (*question.messages, ("assistant", question.expected.strip()))
    scored = _complete(target, messages, limit_s, max_tokens=1, prompt_logprobs=0)
    if scored.logprobs is None or plain.prompt_tokens is None:
        return None
    of_expected = scored.logprobs[plain.prompt_tokens :]
    if not of_expected or any(value is None or not math.isfinite(value) for value in of_expected):
        return None
    return math.fsum(value for value in of_expected if value is not None) / len(of_expected)


def _complete(target: Target, messages: Sequence[tuple[str, str]], limit_s: float, **more: Any) -> _Answer:
    body = {"model": target.model, "temperature": 0, "seed": SEED, "stream": False, **more}
    if target.route == "chat":
        body["messages"] = [{"role": role, "content": content} for role, content in messages]
        if messages[-1][0] == "assistant":
            body |= {"add_generation_prompt": False, "continue_final_message": True}
    else:
        body["prompt"] = _as_text(messages)
    answer = engine_http.call(
        target.address, target.path, engine_key=target.engine_key, body=body, timeout_s=limit_s
    )
    if answer.status != 200:
        raise Refused(f"The engine answered {answer.status}{_message_of(answer)}")
    return _read(answer.json())


def _as_text(messages: Sequence[tuple[str, str]]) -> str:
    """Without a template: contents, one below the other; the expected answer follows where the engine would write."""
    if messages[-1][0] == "assistant":
        return _as_text(messages[:-1]) + messages[-1][1]
    return "\n".join(content for _, content in messages)


def _read(content: Any) -> _Answer:
    try:
        choice = content["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        tokens = (content.get("usage") or {}).get("prompt_tokens")
        logprobs = content.get("prompt_logprobs", choice.get("prompt_logprobs"))
        return _Answer(
            text if isinstance(text, str) else "",
            tokens if isinstance(tokens, int) else None,
            [_one(entry) for entry in logprobs] if isinstance(logprobs, list) else None,
        )
    except (KeyError, IndexError, TypeError, AttributeError) as exc:
        raise Refused("The engine's answer is not a completion.") from exc


def _one(entry: Any) -> float | None:
    """`{token id: {logprob, rank, decoded_token}}` of one prompt token; the first token has none."""
    if not isinstance(entry, dict) or not entry:
        return None
    value = next(iter(entry.values())).get("logprob")
    return float(value) if isinstance(value, int | float) else None


def _message_of(answer: engine_http.Answer) -> str:
    try:
        message = answer.json()["error"]["message"]
    except (engine_http.EngineUnreachable, KeyError, TypeError):
        return "."
    return f": {str(message).splitlines()[0][:200] if message else ''}"
