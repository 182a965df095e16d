"""When what happened to a request, for its record: nothing here decides. `*_at_s` and `*_from_s` are monotonic."""

import time
from typing import Any

from pool.domain.breaker import Fault
from pool.gateway.gaps import Gaps
from pool.gateway.tickets import Ticket

_MOST_WAITS = 16


class Timeline(Ticket):
    """The gate's ticket, with what an exchange remembers of its way. None in place of a list that has nothing."""

    __slots__ = (
        "ended_at_s", "failed_tries", "first_byte_at_s", "gaps", "measured_at_s", "queue_s", "queued_from_s",
        "slow_from_s", "stalled_s", "started_at", "started_at_s", "wait_from_s", "wait_reason", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.started_at = time.time()
        self.started_at_s = self.arrived_at_s = time.monotonic()
        self.measured_at_s = 0.0
        """When its length was known; 0 = it was not."""
        self.queued_from_s = 0.0
        self.queue_s = 0.0
        """From then on, or from a failed attempt on, to the slot: over all attempts."""
        self.admitted_at_s = 0.0
        self.first_byte_at_s = 0.0
        self.slow_from_s = 0.0
        self.stalled_s = 0.0
        """How long the client did not read."""
        self.ended_at_s = 0.0
        self.gaps: Gaps | None = None
        self.failed_tries: list[list[Any]] | None = None
        """`[replica, seconds from arrival to sending, fault]`."""
        self.waits: list[list[Any]] | None = None
        """`[reason, seconds]`."""
        self.wait_reason = ""
        """What it waits for now."""
        self.wait_from_s = 0.0

    def begin_wait(self, reason: str, now_s: float) -> None:
        self.end_wait(now_s)
        self.wait_reason = reason
        self.wait_from_s = now_s

    def end_wait(self, now_s: float) -> None:
        """Nothing happens if it does not wait."""
        reason = self.wait_reason
        if reason:
            self.wait_reason = ""
            if self.waits is None:
                self.waits = []
            if len(self.waits) < _MOST_WAITS:
                self.waits.append([reason, now_s - self.wait_from_s])

    def note_failed_try(self, replica_id: str, fault: Fault) -> None:
        if self.failed_tries is None:
            self.failed_tries = []
        self.failed_tries.append([replica_id, self.admitted_at_s - self.started_at_s, fault.value])

    def note_gaps(self, gaps: list[float]) -> None:
        """In ascending order, at least one."""
        if self.gaps is None:
            self.gaps = Gaps()
        self.gaps.add_sorted(gaps)
