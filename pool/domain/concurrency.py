"""How many requests of a lane a replica runs at once: a limit that follows the lane's TTFT target."""

from __future__ import annotations

from collections import deque

_WINDOW = 16
_FEWEST_SAMPLES = 8
_DECREASE = 0.8
_USED_RATIO = 0.75
# A prompt whose own prefill takes longer than half the target cannot meet it: it is held to twice its own time.
_OWN_STRETCH = 2.0


class Concurrency:
    """Additive increase, multiplicative decrease on the median of TTFT over what is allowed.

    AIMD rather than a gradient on the smallest TTFT seen: the lane has a stated target, prompts of one lane
    differ by an order of magnitude, and AIMD lets several gateway processes on one replica find equal shares.
    From the start the limit grows by one per good sample (it doubles per round), after the first decrease by
    one per round. TTFT counts from admission, not from arrival: the wait in the gateway's queue grows when
    the limit falls, and would drive it to the floor. Samples count only while the limit is what holds
    requests back, and only if they were admitted under the present limit.
    """

    __slots__ = (
        "_ceiling", "_is_probing", "_late", "_late_count", "_peak", "adaptive", "changed_at_s", "limit",
        "reason", "target_s",
    )  # fmt: skip

    def __init__(self, start: int, *, ceiling: int | None, target_s: float, adaptive: bool) -> None:
        # The median is over the target if more than half are.
        self._late: deque[bool] = deque(maxlen=_WINDOW)
        self._late_count = 0
        self._is_probing = True
        self._peak = 0
        self._ceiling = ceiling
        self.limit = float(start if ceiling is None else max(1, min(start, ceiling)))
        self.target_s = target_s
        self.adaptive = adaptive
        self.changed_at_s = float("-inf")
        self.reason = "start"

    def set_bounds(self, *, ceiling: int | None, target_s: float) -> None:
        self._ceiling = ceiling
        self.target_s = target_s
        if ceiling is not None and self.limit > ceiling:
            self.limit = float(ceiling)

    def note_ttft(
        self, ttft_s: float, *, own_s: float, in_flight: int, admitted_at_s: float, now_s: float
    ) -> None:
        """`own_s`: what the prompt's own prefill takes on this replica, 0 if not known. `in_flight`: of the
        lane on the replica when it was admitted, itself counted."""
        if (
            not self.adaptive
            or in_flight < int(self.limit) * _USED_RATIO
            or admitted_at_s < self.changed_at_s
        ):
            return
        ratio = ttft_s / max(self.target_s, own_s * _OWN_STRETCH)
        if len(self._late) == _WINDOW:
            self._late_count -= self._late[0]
        is_late = ratio > 1.0
        self._late.append(is_late)
        self._late_count += is_late
        self._peak = max(self._peak, in_flight)
        if not is_late:
            self._increase()
        elif len(self._late) >= _FEWEST_SAMPLES and 2 * self._late_count > len(self._late):
            self._decrease(now_s)

    def _increase(self) -> None:
        if self._ceiling is not None and self.limit >= self._ceiling:
            self.reason = "all_slots"
            return
        self.limit += 1.0 if self._is_probing else 1.0 / self.limit
        if self._ceiling is not None:
            self.limit = min(self.limit, float(self._ceiling))
        self.reason = "within_target"

    def _decrease(self, now_s: float) -> None:
        self.limit = max(1.0, min(self.limit, float(self._peak)) * _DECREASE)
        self._is_probing = False
        self._peak = 0
        self._late.clear()
        self._late_count = 0
        self.changed_at_s = now_s
        self.reason = "over_target"
