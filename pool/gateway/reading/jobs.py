"""What readers are asked, and what becomes of it."""

import asyncio
from collections.abc import Callable
from typing import Any

from pool.gateway.openai import GatewayError
from pool.gateway.reading.body import Reading

Pair = tuple[str, str | None]
"""Digests of a tokenizer and of a chat template."""
OnRead = Callable[[Reading | GatewayError], None]
OnCount = Callable[[int | None], None]
OnCut = Callable[[int, bytes | bytearray], None]
"""Tokens that are gone, and what is left of the body."""


class Job:
    """Ends once: with an answer, or by its time. Who waits is told unless it was cancelled."""

    __slots__ = ("body", "done", "needs", "question", "timer", "_on_end")

    def __init__(
        self,
        question: dict[str, Any],
        body: bytes | bytearray,
        on_end: Callable[[dict[str, Any], bytearray], None],
        *,
        needs: Pair | None = None,
    ) -> None:
        self.question = question
        self.body = body
        self.needs = needs
        """Only a reader that has loaded it can answer."""
        self.done = False
        self.timer: asyncio.TimerHandle | None = None
        self._on_end = on_end

    def cancel(self) -> None:
        """Nobody waits any more. A reader that is at it finishes, within the time that the job had."""
        self.done = True

    def end(self, answer: dict[str, Any], payload: bytearray) -> None:
        self.body = b""
        if self.timer is not None:
            self.timer.cancel()
        if not self.done:
            self.done = True
            self._on_end(answer, payload)

    def fail(self, reason: str) -> None:
        self.end({"failure": reason}, bytearray())
