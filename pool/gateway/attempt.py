"""One try of a request at one replica: connection, sending, what comes back, and whose fault a failure is."""

import time
from typing import Any, Protocol

from pool.domain.breaker import Fault, read_fault
from pool.gateway.replicas import LiveReplica
from pool.gateway.response import ResponseHead
from pool.gateway.upstream import Loss, Taker, UpstreamConnection

_NEVER = float("inf")
# The engine's word for what has happened stands at the beginning.
FAULT_BYTES = 4096
_LOST = {
    Fault.PROTOCOL: "The engine's answer is no valid HTTP.",
    Fault.BROKEN: "The engine broke off its answer.",
    Fault.LOST: "The engine broke off before it answered.",
}


class Owner(Protocol):
    """Whose request it is. No call comes after `give_back`."""

    @property
    def started(self) -> bool:
        """Content has left for the client."""

    def on_head(self, attempt: "Attempt", head: ResponseHead) -> None: ...

    def on_first_byte(self, attempt: "Attempt", now_s: float) -> None: ...

    def on_body(self, attempt: "Attempt", body: bytes, *, complete: bool) -> None: ...

    def on_closed(self, attempt: "Attempt") -> bool:
        """The engine closed after its head: True if that was a good end."""

    def on_fault(self, attempt: "Attempt", fault: Fault, text: str) -> None: ...


class Attempt:
    """Takes the replica's breaker along: `note_sent` at the start, one verdict or `drop_trial` at the end."""

    __slots__ = (
        "_body", "_connect_timeout_s", "_connection", "_head_lines", "_is_stale", "_is_trial", "_owner", "_timeout_s",
        "fault", "first_byte_at_s", "head", "is_over", "replica", "timeout_at_s",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        replica: LiveReplica,
        head_lines: bytes,
        body: bytes | bytearray,
        *,
        timeout_s: float,
    ) -> None:
        """`head_lines`: request line and own header lines. `timeout_s`: to the first byte of the answer."""
        self._owner = owner
        self._head_lines = head_lines
        self._body = body
        self._timeout_s = timeout_s
        self._connect_timeout_s = 0.0
        self._connection: UpstreamConnection | None = None
        self._is_stale = False
        self._is_trial = False
        self.replica = replica
        self.head: ResponseHead | None = None
        self.fault: Fault | None = None
        """What the breaker was told of it."""
        self.is_over = False
        self.first_byte_at_s = 0.0
        self.timeout_at_s = _NEVER
        """Of what it waits for now: the first byte, then the next one."""

    def start(self, now_s: float, *, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        replica = self.replica
        replica.last_request_at_s = now_s
        self._is_trial = replica.breaker.note_sent(now_s)
        connection = replica.pool.find_idle()
        if connection is None:
            replica.pool.connect(self, timeout_s=connect_timeout_s)
        else:
            self._send(connection, now_s)

    def take_first(self, taker: Taker | None) -> None:
        """Who has each further read before this attempt."""
        if self._connection is not None:
            self._connection.in_step = taker

    def set_slow(self, *, slow: bool) -> None:
        """The client does not read: neither does the gateway."""
        if self._connection is not None:
            self._connection.pause(paused=slow)

    def note_success(self, now_s: float) -> None:
        self._is_trial = False
        self.replica.breaker.note_success(now_s)

    def note_fault(self, fault: Fault, now_s: float) -> None:
        self._is_trial = False
        self.fault = fault
        self.replica.breaker.note_failure(fault, now_s)

    def give_back(self) -> None:
        """The connection to its pool if the answer was complete; else it is closed, which ends the request there."""
        self.is_over = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
        if self._is_trial:
            self._is_trial = False
            self.replica.breaker.drop_trial()

    # From the pool and the connection.
    def on_connected(self, connection: UpstreamConnection) -> None:
        if self.is_over:
            connection.offer()
        else:
            self._send(connection, time.monotonic())

    def on_connect_failed(self, *, timed_out: bool) -> None:
        if not self.is_over:
            # An engine that dies at once when an old connection is used may have died of this request.
            fault = Fault.CONNECT_TIMEOUT if timed_out else Fault.CONNECT
            self._owner.on_fault(
                self, Fault.LOST if self._is_stale else fault, "The engine could not be reached."
            )

    def on_lost(self, connection: UpstreamConnection, loss: Loss) -> None:
        self._connection = None
        if connection.head is None and connection.reused and not connection.got_bytes:
            # The engine closed an idle connection at the moment of its use: a fresh one tells more.
            self._is_stale = True
            connection.pool.close_idle(before_s=_NEVER)
            connection.pool.connect(self, timeout_s=self._connect_timeout_s)
            return
        if connection.head is not None and self._owner.on_closed(self):
            return
        broken = Fault.BROKEN if self._owner.started else Fault.LOST
        fault = Fault.PROTOCOL if loss is Loss.NO_HTTP else broken
        self._owner.on_fault(self, fault, _LOST[fault])

    def on_response(self, connection: UpstreamConnection, body: bytes) -> None:
        head = connection.head
        assert head is not None
        if self.head is None:
            self._open(head)
            if self.is_over:
                return
        if body and not self.first_byte_at_s:
            self._note_first_byte()
        self._owner.on_body(self, body, complete=connection.complete)

    # Inside.
    def _send(self, connection: UpstreamConnection, now_s: float) -> None:
        self._connection = connection
        self.replica.last_sent_at_s = now_s
        self.timeout_at_s = now_s + self._timeout_s
        body = self._body
        head = b"%b%bcontent-length: %d\r\n\r\n" % (self._head_lines, connection.pool.head_prefix, len(body))
        connection.send(self, head, body)

    def _open(self, head: ResponseHead) -> None:
        self.head = head
        status = head.status
        self.replica.last_answer_at_s = time.monotonic()
        if status < 500 and read_fault(status) is not None:
            # The gateway's own key or address is wrong; the client can do nothing about it.
            self._owner.on_fault(self, Fault.MISDIRECTED, "The engine refused the gateway.")
        else:
            self._owner.on_head(self, head)

    def _note_first_byte(self) -> None:
        now_s = time.monotonic()
        self.first_byte_at_s = self.replica.last_byte_at_s = now_s
        if self._is_trial:
            self.replica.breaker.note_first_byte()
        self._owner.on_first_byte(self, now_s)


def read_engine_fault(status: int, body: Any) -> Fault | None:
    """Of a complete answer."""
    return read_fault(status, bytes(body[:FAULT_BYTES]))
