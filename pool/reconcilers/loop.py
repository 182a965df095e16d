"""A loop: one owner by a lease row, woken by NOTIFY and at the latest after a second, never ended by an error."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import psycopg
from django.db import DatabaseError, InterfaceError, close_old_connections, connection
from django.utils import timezone

from pool.services.leases import LEASE_LENGTH, claim_lease, release_lease, store_report

logger = logging.getLogger(__name__)

CHANNEL = "sluice_changed"
LONGEST_WAIT_S = 1.0
"""A lost notification costs at most this much."""
SHORTEST_WAIT_S = 0.05
"""Between two passes: a burst of changes is one pass."""

Pass = Callable[[datetime], dict[str, object]]


@dataclass
class Loop:
    """Runs `work` in a thread of its own. `leased` False: every process runs it (a node's own loop)."""

    name: str
    work: Pass
    leased: bool = True
    longest_wait_s: float = LONGEST_WAIT_S
    holder: uuid.UUID = field(default_factory=uuid.uuid4)
    wake: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)
    reported: dict[str, object] = field(default_factory=dict)
    passes: int = 0
    failures: int = 0
    pass_s: float | None = None
    ended_at: float | None = None
    """Duration of the newest pass, and its end on the monotonic clock."""
    leased_until: datetime | None = None
    thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self.run, name=f"loop-{self.name}", daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.wake.wait(self.longest_wait_s)
            self.wake.clear()
            self.run_once()
            self.stopping.wait(SHORTEST_WAIT_S)
        self._release()

    def run_once(self) -> bool:
        """One pass if this process owns the loop. True if it ran to its end."""
        try:
            now = timezone.now()
            if self.leased and not self._holds_lease(now):
                return False
            began_at = time.monotonic()
            report = self.work(now)
            self.ended_at = time.monotonic()
            self.pass_s = self.ended_at - began_at
            if self.leased and report != self.reported:
                store_report(self.name, self.holder, report)
                self.reported = report
            self.passes += 1
            return True
        except (DatabaseError, InterfaceError) as exc:
            self._note_failure("the database did not answer", exc)
            self.stopping.wait(LONGEST_WAIT_S)
            return False
        except Exception as exc:
            # A loop edge: whatever one pass meets, the next pass starts from the stored facts again.
            self._note_failure("a pass failed", exc)
            self.stopping.wait(LONGEST_WAIT_S)
            return False
        finally:
            close_old_connections()

    def _holds_lease(self, now: datetime) -> bool:
        """Renewed when more than half of it is over; nobody else takes it before it runs out."""
        if self.leased_until is not None and self.leased_until - now > LEASE_LENGTH / 2:
            return True
        claimed = claim_lease(self.name, self.holder, now=now)
        self.leased_until = now + LEASE_LENGTH if claimed else None
        return claimed

    def stop(self, *, timeout_s: float = 5.0) -> None:
        self.stopping.set()
        self.wake.set()
        if self.thread is not None:
            self.thread.join(timeout_s)

    def _note_failure(self, what: str, exc: Exception) -> None:
        self.failures += 1
        known = isinstance(exc, (DatabaseError, InterfaceError))
        logger.warning("loop %s: %s: %s", self.name, what, exc, exc_info=None if known else exc)

    def _release(self) -> None:
        if not self.leased:
            return
        try:
            release_lease(self.name, self.holder, now=timezone.now())
        except (DatabaseError, InterfaceError):
            logger.info("loop %s: lease not released, it runs out by itself", self.name)
        finally:
            close_old_connections()


class Listener(threading.Thread):
    """Wakes loops on `sluice_changed`; without a connection the loops still pass every second."""

    def __init__(self, loops: list[Loop]) -> None:
        super().__init__(name="listener", daemon=True)
        self.loops = loops
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._listen()
            except (psycopg.Error, DatabaseError, InterfaceError) as exc:
                logger.info("listener: no connection, trying again: %s", exc)
                self.stopping.wait(1.0)

    def _listen(self) -> None:
        parameters = connection.get_connection_params()
        parameters.pop("pool", None)
        parameters.pop("cursor_factory", None)
        parameters.pop("context", None)
        with psycopg.connect(**parameters, autocommit=True) as listening:
            listening.execute(f"LISTEN {CHANNEL}")
            while not self.stopping.is_set():
                for _ in listening.notifies(timeout=1.0, stop_after=1):
                    for loop in self.loops:
                        loop.wake.set()

    def stop(self) -> None:
        self.stopping.set()


def monotonic_watch() -> Callable[[], timedelta]:
    """Measures for how long the caller has been called without a gap of more than 5 s (its own stall)."""
    started = last = time.monotonic()

    def watching_for() -> timedelta:
        nonlocal started, last
        current = time.monotonic()
        if current - last > LEASE_LENGTH.total_seconds():
            started = current
        last = current
        return timedelta(seconds=current - started)

    return watching_for
