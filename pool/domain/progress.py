"""Engines that hang while their API still answers, found by what a gateway sees: requests in flight and no byte
from the engine. Opens a breaker only; whether an engine is restarted is the node's decision (pool.domain.liveness).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

MIN_IN_FLIGHT = 2
"""One plain request alone is silent until its last token; its own limit ends it."""
SILENCE_S = 8.0
"""Under continuous batching a step takes up to 2 s on `cpu`: four times that (as in pool.domain.liveness)."""
LEARNT_FACTOR = 3.0
"""Of the longest silence that this engine has ended by itself."""
LONGEST_SILENCE_S = 120.0
PREFILL_TOKENS_PER_S = 1_000.0
"""The slowest prefill that is met in practice; what waits for its first byte may take so long (FC-26)."""
HALF_LIFE_S = 120.0
"""Of what was learnt: an engine is slow while it is cold."""


class Working(Protocol):
    """What a gateway knows of one engine."""

    @property
    def in_flight(self) -> int: ...

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens of the requests that have no first byte yet."""

    @property
    def last_byte_at_s(self) -> float:
        """Of any answer of this engine; 0 = never."""


class Sign(StrEnum):
    """What one look found."""

    NONE = "none"  # Nothing to act on.
    HUNG = "hung"  # Tell the breaker, at each look: `note_hung`.
    MOVED = "moved"  # A byte came although it was held for hung: `note_progress`.


class ProgressWatch:
    """One per replica; `look` about once a second, also while it is idle."""

    __slots__ = ("_busy_since_s", "_learnt_s", "_looked_at_s", "_seen_byte_at_s", "hung_since_s")

    def __init__(self) -> None:
        self.hung_since_s: float | None = None
        """Time of its last sign of life, while it is held for hung."""
        self._busy_since_s: float | None = None
        self._seen_byte_at_s = 0.0
        self._learnt_s = 0.0
        self._looked_at_s = 0.0

    def look(self, engine: Working, now_s: float) -> Sign:
        """Any byte clears a hang, and the silence before it is learnt: an engine whose plain answers take long is
        suspected once and not again."""
        if engine.in_flight <= 0:
            self._busy_since_s = self.hung_since_s = None
            return Sign.NONE
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        if self._learnt_s:
            self._learnt_s *= 0.5 ** ((now_s - self._looked_at_s) / HALF_LIFE_S)
        self._looked_at_s = now_s
        if engine.last_byte_at_s > self._seen_byte_at_s and self._learn(engine.last_byte_at_s):
            return Sign.MOVED
        silent_since_s = max(self._busy_since_s, self._seen_byte_at_s)
        if engine.in_flight >= MIN_IN_FLIGHT and now_s - silent_since_s >= self.limit_s(engine):
            self.hung_since_s = silent_since_s
        return Sign.NONE if self.hung_since_s is None else Sign.HUNG

    def limit_s(self, engine: Working) -> float:
        """How long it may be silent now."""
        usual_s = max(SILENCE_S, LEARNT_FACTOR * self._learnt_s)
        return min(LONGEST_SILENCE_S, usual_s + engine.prefill_tokens / PREFILL_TOKENS_PER_S)

    def share_fact(self, now_s: float) -> dict[str, Any] | None:
        """For the heartbeat: what control and pages are told; None = nothing is wrong."""
        if self.hung_since_s is None:
            return None
        return {"reason": "hung", "silent_s": round(now_s - self.hung_since_s, 3)}

    def _learn(self, byte_at_s: float) -> bool:
        """True if this byte ends a hang."""
        since_s = max(self._busy_since_s or 0.0, self._seen_byte_at_s)
        self._learnt_s = max(self._learnt_s, byte_at_s - since_s)
        self._seen_byte_at_s = byte_at_s
        was_hung, self.hung_since_s = self.hung_since_s is not None, None
        return was_hung
