"""The breaker of one replica, as one gateway process sees it: which of its failures are the engine's fault, how
long it is passed over for them, and how it gets a trial. What a caller did wrong (4xx, 429, 499) never counts
(FC-15). The last replica of a release is never off: `link_breakers` tells each who else could serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

FAILURES_IN_A_ROW = 3
"""Of those faults that one request alone may cause."""
SCORE_STEP = 0.05
"""Weight of the newest outcome in the error score: the last 20 or so requests count."""
SCORE_LIMIT = 0.5
"""A replica that fails every other request never fails three times in a row; its score tells."""
SCORE_AFTER_TRIAL = 0.25
"""One failure more does not open it again at once, and choice still prefers the others."""
SCORE_HALF_LIFE_S = 30.0
"""Choice avoids a high score, so few requests could show that it is better: time forgives too."""
TRIAL_LEASE_S = 30.0
"""A trial whose end nobody told is forgotten after so long."""
FORGET_S = 30.0
"""Closed for so long, the next opening is short again; a replica that flaps is passed over for longer."""
SHORTEST_OPEN_S, LONGEST_OPEN_S = 0.5, 10.0
SHORTEST_HUNG_S, LONGEST_HUNG_S = 15.0, 120.0
"""A trial at a hung engine costs a caller the whole first-byte limit; a byte from it ends this earlier."""


class Fault(StrEnum):
    """What went wrong at an engine. Limits of the whole request are no fault: they count the queue too."""

    CONNECT = "connect"  # Nobody listens, or the host cannot be reached.
    CONNECT_TIMEOUT = "connect_timeout"
    LOST = "lost"  # The connection ended before the answer began.
    BROKEN = "broken"  # It ended, or said an error, within the answer.
    DEAD_CORE = "dead_core"  # The API answers for a core that is dead.
    MISDIRECTED = "misdirected"  # The gateway's own key or address is refused: another process listens there.
    HUNG = "hung"  # Nothing comes although work waits; found by pool.domain.progress, told by `note_hung`.
    SERVER_ERROR = "server_error"
    UNAVAILABLE = "unavailable"  # 503: not taken on.
    PROTOCOL = "protocol"  # No valid HTTP, or no valid event.
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"


AT_ONCE = frozenset({Fault.CONNECT, Fault.CONNECT_TIMEOUT, Fault.LOST, Fault.DEAD_CORE, Fault.MISDIRECTED})
"""What no single request explains: passed over from the first time on (FC-02)."""

_DEAD_CORE_MARKS = (b"EngineCore encountered an issue", b"EngineDeadError")
"""What vLLM 0.32 says when its core has died (measured)."""


class Phase(StrEnum):
    CLOSED = "closed"  # Serves.
    OPEN = "open"  # Passed over until its time is up.
    HALF_OPEN = "half_open"  # One request at a time, until one succeeds or fails.


def read_fault(status: int, body: bytes = b"") -> Fault | None:
    """The engine's fault in a complete answer; None for a success and for what the caller did wrong.

    501 is vLLM's answer to a field that this model cannot serve: the caller's.
    """
    if status < 300 or status == 501:
        return None
    if status >= 500:
        if status == 503:
            return Fault.UNAVAILABLE
        return Fault.DEAD_CORE if any(mark in body for mark in _DEAD_CORE_MARKS) else Fault.SERVER_ERROR
    return Fault.MISDIRECTED if status < 400 or status in (401, 403) else None


class Breaker:
    """Call `note_sent` when a request goes out and, for each, one of `note_success` (answered to the end, 4xx
    included), `note_failure` or `drop_trial` (ended without a verdict). `closed` and `error_score` are fields,
    because the choice of a replica reads them for every request."""

    __slots__ = (
        "_circles", "_closed_at_s", "_failures", "_openings", "_opened_at_s", "_succeeded_at_s", "_trial_until_s",
        "_until_s", "_was_tried", "closed", "counts", "error_score", "heard", "reason",
    )  # fmt: skip

    def __init__(self) -> None:
        self.closed = True
        self.error_score = 0.0
        """0 = no failure lately, 1 = nothing else."""
        self.reason = ""
        """Of the newest opening; stays after it for the page."""
        self.counts: dict[str, int] = {}
        """Failures since the start by fault."""
        self.heard = False
        """Opened by what another process says."""
        self._circles: tuple[Sequence[Breaker], ...] = ()
        self._was_tried = False
        self._failures = 0
        self._openings = 0
        self._opened_at_s = self._until_s = self._trial_until_s = 0.0
        self._closed_at_s = self._succeeded_at_s = float("-inf")

    # Before a request.
    def allows(self, now_s: float) -> bool:
        """While it is open: where nobody else could serve, one request at a time."""
        if self.closed:
            return True
        return now_s >= self._trial_until_s and (now_s >= self._until_s or self._is_last(now_s))

    def note_sent(self, now_s: float) -> bool:
        """True if this request is the trial: then its end must be told."""
        if self.closed:
            return False
        self._trial_until_s = now_s + TRIAL_LEASE_S
        self._was_tried = True
        return True

    # After it.
    def note_first_byte(self) -> None:
        """The trial's answer begins: the next one may start, however long this one streams."""
        self._trial_until_s = 0.0

    def drop_trial(self) -> None:
        """The client left, or the whole request's time was up: says nothing about the engine."""
        self._trial_until_s = 0.0

    def note_success(self, now_s: float) -> None:
        self._succeeded_at_s = now_s
        if self.closed:
            self._failures = 0
            if self.error_score:
                self.error_score *= 1.0 - SCORE_STEP
        elif self._is_tried(now_s) or self.reason == Fault.HUNG:
            self._close(now_s)

    def note_failure(self, fault: Fault, now_s: float) -> None:
        self.counts[fault] = self.counts.get(fault, 0) + 1
        self._failures += 1
        self.error_score += SCORE_STEP * (1.0 - self.error_score)
        if not self.closed:
            # An old request that fails late tells nothing new; a trial does.
            if self._is_tried(now_s):
                self._open(fault, now_s)
        elif fault in AT_ONCE or self._failures >= FAILURES_IN_A_ROW or self.error_score >= SCORE_LIMIT:
            self._open(fault, now_s)

    def note_hung(self, now_s: float) -> None:
        """At each look that finds it hung: what is in flight there is the trial, so no caller is sent as one."""
        if self.closed or self.reason != Fault.HUNG or now_s >= self._until_s:
            self.counts[Fault.HUNG] = self.counts.get(Fault.HUNG, 0) + 1
            self._open(Fault.HUNG, now_s)

    def note_progress(self, now_s: float) -> None:
        """A byte came from an engine that was held for hung."""
        if self.reason == Fault.HUNG and not self.closed:
            self._close(now_s)

    def fade(self, passed_s: float) -> None:
        """From the clock, each second or so."""
        if self.error_score:
            faded = self.error_score * 0.5 ** (passed_s / SCORE_HALF_LIFE_S)
            self.error_score = faded if faded >= 0.001 else 0.0

    # Among gateway processes.
    def share_opinion(self, now_s: float) -> dict[str, Any] | None:
        """What other processes are told; None = nothing. Only first-hand: what was heard is not told on, or
        two processes would keep each other's opinion alive for ever."""
        if self.closed or self.heard or now_s >= self._until_s:
            return None
        return {
            "reason": self.reason,
            "age_s": round(now_s - self._opened_at_s, 3),
            "left_s": round(self._until_s - now_s, 3),
        }

    def hear_opinions(self, opinions: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """All fresh ones of other processes, each time. An own success that is newer than their failure
        outweighs them; the last one that falls silent closes what was only heard."""
        longest = max(opinions, key=_left_s, default=None)
        if longest is None:
            if self.heard and not self.closed:
                self._close(now_s)
            return
        opened_at_s = now_s - float(longest["age_s"])
        if (self.closed or self.heard) and self._succeeded_at_s < opened_at_s:
            self.closed = False
            self.heard = True
            self.reason = str(longest["reason"])
            self._opened_at_s = opened_at_s
            self._until_s = now_s + _left_s(longest)

    # For pages.
    def describe(self, now_s: float) -> dict[str, Any]:
        """JSON-able. `left_s`: until the next trial; None where none is waited for."""
        phase = Phase.CLOSED if self.closed else Phase.OPEN if now_s < self._until_s else Phase.HALF_OPEN
        return {
            "phase": phase.value,
            "reason": "" if self.closed else str(self.reason),
            "since_s": None if self.closed else round(now_s - self._opened_at_s, 3),
            "left_s": round(self._until_s - now_s, 3) if phase is Phase.OPEN else None,
            "heard": self.heard,
            "error_score": round(self.error_score, 3),
            "last_reason": str(self.reason),
            "failures": {str(fault): count for fault, count in self.counts.items()},
        }

    def _is_last(self, now_s: float) -> bool:
        return any(all(not one.closed and now_s < one._until_s for one in circle) for circle in self._circles)

    def _is_tried(self, now_s: float) -> bool:
        """Whether an outcome may be that of a trial."""
        return self._was_tried or now_s >= self._until_s

    def _open(self, fault: Fault, now_s: float) -> None:
        if self.closed and now_s - self._closed_at_s >= FORGET_S:
            self._openings = 0
        shortest_s, longest_s = (
            (SHORTEST_HUNG_S, LONGEST_HUNG_S) if fault is Fault.HUNG else (SHORTEST_OPEN_S, LONGEST_OPEN_S)
        )
        if self.closed or self.heard:
            self._opened_at_s = now_s
        self.closed = False
        self.heard = False
        self.reason = fault
        # Bounded, since a power of two of a replica that is dead for days has no end.
        self._until_s = now_s + min(longest_s, shortest_s * 2.0 ** min(self._openings, 16))
        self._openings += 1
        self._was_tried = False
        self._trial_until_s = 0.0

    def _close(self, now_s: float) -> None:
        self.closed = True
        self.heard = False
        self._failures = 0
        self._closed_at_s = now_s
        self._trial_until_s = 0.0
        self.error_score = min(self.error_score, SCORE_AFTER_TRIAL)


def link_breakers(circles: Iterable[Sequence[Breaker]]) -> None:
    """From the routing table: for each lane of a release the breakers of all replicas that serve it. A replica
    that serves several lanes is needed as soon as it is the last one of any."""
    found: dict[Breaker, list[Sequence[Breaker]]] = {}
    for circle in circles:
        for breaker in circle:
            found.setdefault(breaker, []).append(circle)
    for breaker, own in found.items():
        breaker._circles = tuple(own)


def _left_s(opinion: Mapping[str, Any]) -> float:
    return float(opinion["left_s"])
