"""What the browser may ask of the playground: checked, then made into a body for the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pool.services.errors import Invalid

ROLES = ("system", "user", "assistant")
MOST_MESSAGES = 100
MOST_TOKENS = 8192


@dataclass(frozen=True)
class ChatRequest:
    """`release` None: the plan decides. `max_tokens` None: up to the context."""

    model: str
    messages: tuple[tuple[str, str], ...]
    release: int | None
    max_tokens: int | None
    temperature: float | None

    def body(self) -> dict[str, object]:
        given = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return {
            "model": self.model,
            "messages": [{"role": role, "content": text} for role, text in self.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in given.items() if value is not None},
        }


def parse_chat(message: Mapping[str, Any]) -> ChatRequest:
    """Raises Invalid, naming the field."""
    model = message.get("model")
    if not isinstance(model, str) or not model:
        raise Invalid("Choose a model first.", field="model")
    return ChatRequest(
        model=model,
        messages=_messages(message.get("messages")),
        release=_whole(message, "release", low=1, high=10**6),
        max_tokens=_whole(message, "max_tokens", low=1, high=MOST_TOKENS),
        temperature=_ratio(message.get("temperature")),
    )


def _messages(given: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_MESSAGES:
        raise Invalid(f"A chat has 1 to {MOST_MESSAGES} messages.", field="messages")
    messages = []
    for entry in given:
        role, text = (entry.get("role"), entry.get("content")) if isinstance(entry, Mapping) else (None, None)
        if role not in ROLES or not isinstance(text, str):
            raise Invalid("Each message needs a role and a text.", field="messages")
        messages.append((str(role), text))
    return tuple(messages)


def _whole(message: Mapping[str, Any], name: str, *, low: int, high: int) -> int | None:
    value = message.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invalid(f"{name} must be a whole number from {low} to {high}.", field=name)
    return value


def _ratio(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise Invalid("temperature must be from 0 to 2.", field="temperature")
    return float(value)
