"""When a failed replica may start again, and when it is given up. Pure: history in, history and time out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

MAX_FAILED_STARTS = 3
"""A start that failed three times in a row fails for a reason that time does not heal; each try costs a
device minutes."""
MAX_CRASHES = 3
CRASH_WINDOW = timedelta(minutes=10)
"""Three crashes within the window are a loop: a start takes 0.5 to 3 minutes, so the engine hardly served
between them."""
STABLE_AFTER = timedelta(minutes=2)
"""Ready for this long means that the start was sound; warm-up and the first real load are behind it."""
FIRST_DELAY = timedelta(seconds=10)
"""Memory of a dead process tree is back within seconds; a retry before that would fail for lack of it."""
DELAY_FACTOR = 3.0
MAX_DELAY = timedelta(minutes=5)


class FailureKind(StrEnum):
    PERMANENT = "permanent"
    """Time does not heal it (bad argument, cache too small): only an operator moves it on."""
    TRANSIENT = "transient"
    """May heal by itself: retried with back-off, a bounded number of times."""
    INTERRUPTED = "interrupted"
    """Ended with its host or installation, not by itself: started again at once, and counted for nothing."""
    UNPLACED = "unplaced"
    """No node has room. Nothing was started, so looking again costs nothing: retried without bound."""


@dataclass(frozen=True)
class Failure:
    kind: FailureKind
    code: str
    message: str


@dataclass(frozen=True)
class History:
    """Failures of one replica. `failed_starts` counts in a row; `crashes_at` are those within the window,
    oldest first."""

    failed_starts: int = 0
    crashes_at: tuple[datetime, ...] = ()

    @property
    def exhausted(self) -> bool:
        return self.failed_starts >= MAX_FAILED_STARTS or len(self.crashes_at) >= MAX_CRASHES


def record_failure(
    history: History, failure: Failure, *, ready_for: timedelta | None, now: datetime
) -> tuple[History, datetime | None]:
    """The history with this failure in it, and the time of the next try; None: no try before an operator
    asks.

    `ready_for`: how long the engine was ready; None when it never was.
    """
    if failure.kind is FailureKind.INTERRUPTED:
        return history, now
    if failure.kind is FailureKind.UNPLACED:
        return history, now + MAX_DELAY
    after = _with_failure(history, ready_for, now)
    if failure.kind is FailureKind.PERMANENT or after.exhausted:
        return after, None
    return after, now + _delay(after)


def _with_failure(history: History, ready_for: timedelta | None, now: datetime) -> History:
    crashes = tuple(at for at in history.crashes_at if now - at < CRASH_WINDOW)
    if ready_for is None:
        return History(history.failed_starts + 1, crashes)
    failed_starts = 0 if ready_for >= STABLE_AFTER else history.failed_starts
    return History(failed_starts, (*crashes, now))


def _delay(history: History) -> timedelta:
    """The first restart after a crash is immediate; from then on each further failure waits three times
    as long."""
    failures = history.failed_starts + max(0, len(history.crashes_at) - 1)
    if failures == 0:
        return timedelta(0)
    return min(FIRST_DELAY * DELAY_FACTOR ** (failures - 1), MAX_DELAY)
