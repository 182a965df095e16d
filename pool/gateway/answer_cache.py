"""Answers to deterministic requests: kept in memory, then in Redis, and shared by equal ones in flight."""

import enum
from dataclasses import dataclass
from typing import Any, Protocol

import redis.asyncio

from pool.domain.gateway_settings import ModelSettings


class Turn(enum.Enum):
    GO = "go"
    """The asker goes to an engine."""
    WAIT = "wait"
    """The asker is told later, by exactly one of its callbacks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of status 200, whole."""

    release: int
    content_type: bytes
    body: bytes


class Asker(Protocol):
    """A request that may get its answer from another one. Callbacks come at most once."""

    def on_answer(self, answer: Answer) -> None: ...

    def on_turn(self) -> None:
        """Nobody has the answer: go to an engine."""


class AnswerCache:
    """One per process. `settle` must follow each `ask` that did not return an answer, once, at the end."""

    def __init__(self, *, secret: str, capacity_bytes: int = 64 << 20) -> None: ...

    def attach(self, client: "redis.asyncio.Redis | None", *, prefix: str) -> None:
        """Redis as second layer, or None while it is away. `prefix`: `sluice:<installation>`."""

    def key_of(
        self, path: bytes, fields: dict[str, Any], *, settings: ModelSettings, scope: str, release: int
    ) -> bytes | None:
        """None = not for this request. `scope`: digest of the caller's key, whose answers nobody else gets."""
        return None

    def ask(self, key: bytes, asker: Asker, *, settings: ModelSettings, now_s: float) -> Answer | Turn:
        return Turn.GO

    def settle(
        self, key: bytes, asker: Asker, answer: Answer | None, *, settings: ModelSettings, now_s: float
    ) -> None:
        """The asker's request is over. None = it failed, its client has gone, or its answer is not to be kept."""

    def describe(self) -> dict[str, Any]:
        return {}
