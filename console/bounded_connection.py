"""A database connection that gives up on a server that hangs.

PostgreSQL's own time-outs end what it works on; a server that is stopped (a hung disk, a frozen machine) ends nothing,
and a Unix socket to it never breaks. Its clients would wait as long as it does (FC-57).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from psycopg import errors


@dataclass(frozen=True)
class Limits:
    """Of one statement, in seconds; 0: none. `answer_s` is the client's own and the longest."""

    lock_s: float
    statement_s: float
    answer_s: float

    @property
    def server_options(self) -> str:
        return (
            f"-c statement_timeout={int(self.statement_s * 1000)} -c lock_timeout={int(self.lock_s * 1000)} "
            "-c idle_in_transaction_session_timeout=30000"
        )


# A person or a script waits for a page; whatever takes longer than this is refused and tried again.
PAGES = Limits(lock_s=3.0, statement_s=4.0, answer_s=5.0)
LOOPS = Limits(lock_s=5.0, statement_s=15.0, answer_s=17.0)
# A migration may rewrite a table for minutes; only its wait for others' locks is short (FC-79).
COMMANDS = Limits(lock_s=5.0, statement_s=0.0, answer_s=0.0)


def limits_of(process: str) -> Limits:
    """`process` is the name that the launcher gave it."""
    if process == "web" or process.startswith("web-"):
        return PAGES
    return COMMANDS if process == "manage" else LOOPS


class BoundedConnection(psycopg.Connection[Any]):
    """Raises OperationalError and closes itself when the server is silent for `answer_s`."""

    answer_s: ClassVar[float] = LOOPS.answer_s

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if timeout is not None or not self.answer_s:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_s)
        except errors._WaitTimeout:
            # A late answer would be taken for that of the next statement.
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"the server gave no answer within {self.answer_s:.0f} s"
            ) from None


def connection_class(limits: Limits) -> type[BoundedConnection]:
    return type("BoundedConnection", (BoundedConnection,), {"answer_s": limits.answer_s})
