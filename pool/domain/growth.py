"""The breaker of a lane whose pending requests grow faster than they are served."""

from __future__ import annotations

from collections import deque
from typing import Any

CLOSED, NO_BATCH, NO_STANDARD = 0, 1, 2
STAGES = ("closed", "no_batch", "no_standard")
"""Whose new requests are refused: nobody's, those of `batch`, those of `standard` too."""

SAMPLE_S = 15.0
_WINDOW = 40
"""Samples in 10 minutes."""
_ENDS = 8
"""Samples at each end of the window that are averaged: 2 minutes. A burst of one minute is what queues are for."""
_FEWEST_WAITING = 8
_EXIT_BELOW_RATIO = 0.05
HOLD_S = 120.0
"""Between two steps, up or down."""


class GrowthBreaker:
    """Growth = pending requests (waiting and running) over 10 minutes: the mean of the last two over that of
    the first two, less one. Opens when it is over the limit and more than 8 waited all through the last two.

    A mean of less than one counts as one. Unknown (None) until there are 10 minutes of samples: the queue's
    bound holds until then.
    """

    __slots__ = (
        "_crowded_samples", "_good_since_s", "_sampled_at_s", "_samples", "growth_ratio", "reason", "since_s",
        "stage",
    )  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self._samples: deque[int] = deque(maxlen=_WINDOW)
        self._sampled_at_s = now_s - SAMPLE_S
        self._crowded_samples = 0
        self._good_since_s: float | None = None
        self.stage = CLOSED
        self.since_s = now_s
        self.reason = "never_open"
        self.growth_ratio: float | None = None

    def observe(self, *, pending: int, waiting: int, limit_ratio: float, now_s: float) -> None:
        """May be called at any time; takes a sample each 15 s."""
        if now_s - self._sampled_at_s < SAMPLE_S:
            return
        # After a pause of the caller the missed samples stay missing: the window gets longer, not denser.
        self._sampled_at_s = now_s
        self._samples.append(pending)
        self._crowded_samples = self._crowded_samples + 1 if waiting > _FEWEST_WAITING else 0
        if len(self._samples) < _WINDOW:
            return
        samples = list(self._samples)
        growth = sum(samples[-_ENDS:]) / max(_ENDS, sum(samples[:_ENDS])) - 1.0
        self.growth_ratio = growth
        if growth > limit_ratio and self._crowded_samples >= _ENDS:
            self._good_since_s = None
            if self.stage < NO_STANDARD and (self.stage == CLOSED or now_s - self.since_s >= HOLD_S):
                self._enter(self.stage + 1, "pending_grows", now_s)
        elif self.stage and (growth < limit_ratio - _EXIT_BELOW_RATIO or waiting <= _FEWEST_WAITING // 2):
            self._wait_to_close(now_s)
        else:
            self._good_since_s = None

    def describe(self, now_s: float) -> dict[str, Any]:
        return {
            "stage": STAGES[self.stage],
            "reason": self.reason,
            "since_s": round(now_s - self.since_s, 1),
            "growth_ratio": None if self.growth_ratio is None else round(self.growth_ratio, 4),
        }

    def _wait_to_close(self, now_s: float) -> None:
        if self._good_since_s is None:
            self._good_since_s = now_s
        if now_s - max(self._good_since_s, self.since_s) >= HOLD_S:
            self._enter(self.stage - 1, "pending_fell", now_s)

    def _enter(self, stage: int, reason: str, now_s: float) -> None:
        self.stage = stage
        self.reason = reason
        self.since_s = now_s
