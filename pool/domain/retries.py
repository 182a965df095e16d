"""When a request that failed at one replica may go to another one, and how many may do so in a minute.

Which replica is not decided here: the caller leaves out those that were tried.
"""

from __future__ import annotations

from typing import Any, Protocol

from pool.domain.breaker import Fault

MAX_ATTEMPTS = 3
"""The first try and two more, each at another replica."""
MAX_LOSSES = 1
"""A request that an engine held when it died may have killed it: one more engine gets it, not all (FC-14)."""
FLOOR_PER_MIN = 64
"""Retries that are always there: what two engines with 32 slots hold when they die at a quiet time."""
WINDOW_S = 60.0

UNREACHED = frozenset({Fault.CONNECT, Fault.CONNECT_TIMEOUT, Fault.MISDIRECTED})
"""The engine has not begun: another try costs no engine anything, so it is not charged."""
DEATHS = frozenset({Fault.LOST, Fault.DEAD_CORE})
"""The engine may have died of this request."""
RETRIABLE = UNREACHED | DEATHS | {Fault.UNAVAILABLE}
"""Never what was accepted and is slow, which would double the load of those that are slow because of it; and no
plain 5xx or broken answer, which the next engine would most likely repeat."""


class Tries(Protocol):
    """What has happened to a request so far, the failed attempt included."""

    @property
    def attempts(self) -> int: ...

    @property
    def losses(self) -> int:
        """Faults in DEATHS among them."""

    @property
    def started(self) -> bool:
        """A byte of the answer has left for the client; a keep-alive comment is none."""

    @property
    def no_retry(self) -> bool:
        """The caller said so (`x-sluice-no-retry: 1`)."""


class RetryBudget:
    """Retries in relation to the requests of the last minute, counted by two buckets: the last whole minute
    weighs less the older it gets. One per model and process; the share of others needs no exchange, because
    each counts its own requests, but for the floor, which `processes` divides."""

    __slots__ = ("_before", "_now", "_turn_at_s", "denied", "processes", "ratio")

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.processes = 1
        self.denied = 0
        """Since the start."""
        self._now = [0, 0]
        self._before = [0, 0]
        self._turn_at_s = 0.0

    def note_request(self, now_s: float) -> None:
        if now_s >= self._turn_at_s:
            self._turn(now_s)
        self._now[0] += 1

    def take(self, now_s: float) -> bool:
        """One retry, if there is one left."""
        requests, retries = self._count(now_s)
        if retries + 1 > max(FLOOR_PER_MIN / self.processes, self.ratio * requests):
            self.denied += 1
            return False
        self._now[1] += 1
        return True

    def describe(self, now_s: float) -> dict[str, Any]:
        requests, retries = self._count(now_s)
        return {"requests_per_min": round(requests), "retries_per_min": round(retries), "denied": self.denied}

    def _count(self, now_s: float) -> tuple[float, float]:
        if now_s >= self._turn_at_s:
            self._turn(now_s)
        left = min(1.0, (self._turn_at_s - now_s) / WINDOW_S)
        return self._before[0] * left + self._now[0], self._before[1] * left + self._now[1]

    def _turn(self, now_s: float) -> None:
        self._before = self._now if now_s < self._turn_at_s + WINDOW_S else [0, 0]
        self._now = [0, 0]
        self._turn_at_s = now_s + WINDOW_S


def find_objection(fault: Fault, tries: Tries) -> str:
    """Why there may be no other try, as a stable code; "" = none. Does not look at the budget."""
    if tries.started:
        return "started"
    if fault not in RETRIABLE:
        return "accepted"
    if tries.no_retry:
        return "forbidden"
    if tries.attempts >= MAX_ATTEMPTS or tries.losses > MAX_LOSSES:
        return "exhausted"
    return ""


def may_retry(fault: Fault, tries: Tries, *, budget: RetryBudget, now_s: float) -> bool:
    """Takes from the budget where the engine had the request."""
    if find_objection(fault, tries):
        return False
    return fault in UNREACHED or budget.take(now_s)
