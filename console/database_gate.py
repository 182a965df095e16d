"""While the database is down, most requests are refused at once; about one a second looks whether it is back.

Without it every request would wait for the pool's time-out, and the few threads would all hang there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connection

LOOK_EVERY_S = 1.0


def ask_database() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError):
        return False
    return True


class DatabaseGate:
    """Shared by all threads of the process. `ask` says whether the database answers."""

    def __init__(
        self, ask: Callable[[], bool] = ask_database, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._is_down = False
        self._look_at_s = 0.0

    def note_failure(self) -> None:
        """A request has met a database that is down."""
        with self._lock:
            if not self._is_down:
                self._is_down, self._look_at_s = True, self._clock() + LOOK_EVERY_S

    def is_open(self) -> bool:
        """False: refuse at once. While it is down, the one whose turn it is asks the database."""
        if not self._is_down:
            return True
        with self._lock:
            if self._clock() < self._look_at_s:
                return False
            self._look_at_s = self._clock() + LOOK_EVERY_S
        if not self._ask():
            return False
        self._is_down = False
        return True


gate = DatabaseGate()
