"""Shadow requests: a second release sees part of the traffic, in idle slots only; its answers are dropped.

A plan's `shadow` is `{"release": 2, "percent": 10}`. What it costs is counted; nothing of it is told to a client or
counts as a request.
"""

import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pool.domain.breaker import Fault
from pool.gateway.admission import Gate
from pool.gateway.attempt import Attempt
from pool.gateway.metrics import Metrics
from pool.gateway.replicas import LiveReplica
from pool.gateway.response import ResponseHead
from pool.gateway.tickets import Ticket
from pool.gateway.usage import read_usage

if TYPE_CHECKING:
    from pool.gateway.relay import Exchange

_TAIL_BYTES = 4096
_NEVER = float("inf")


class Shadows:
    """All that run in this process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: set[Shadow] = set()
        self._costs: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def cost_of(self, model: str) -> tuple[int, int]:
        """Requests and tokens since the start."""
        return self._costs.get(model, (0, 0))

    def offer(self, exchange: "Exchange", wish: Mapping[str, Any], now_s: float) -> None:
        """After the request itself has gone out, so that it never waits for its shadow."""
        release, percent = wish.get("release"), wish.get("percent", 100)
        model, replica = exchange.model, exchange.replica
        if model is None or replica is None or replica.release == release:
            return
        gate = model.gates.get(release) if isinstance(release, int) else None
        if gate is None or random.random() * 100 >= percent:
            return
        shadow = Shadow(self, exchange, gate)
        found = gate.enter_shadow(shadow, now_s)
        if found is not None:
            self._running.add(shadow)
            shadow.start(found, now_s)

    def check_deadlines(self, now_s: float) -> None:
        for shadow in list(self._running):
            shadow.check_deadline(now_s)

    def end_all(self) -> None:
        for shadow in list(self._running):
            shadow.end("cut")

    def note_end(self, shadow: "Shadow", outcome: str, tokens: int) -> None:
        self._running.discard(shadow)
        requests, sum_tokens = self._costs.get(shadow.model, (0, 0))
        self._costs[shadow.model] = (requests + 1, sum_tokens + tokens)
        labels = {"model": shadow.model, "release": str(shadow.release)}
        self._metrics.counter("sluice_shadow_requests_total", **labels, outcome=outcome).value += 1.0
        self._metrics.counter("sluice_shadow_tokens_total", **labels).value += float(tokens)


class Shadow(Ticket):
    """Ticket and owner, as an exchange is; without a client."""

    __slots__ = (
        "_all", "_ask_body", "_attempt", "_done", "_gate", "_path", "_request_id", "_settings", "_status",
        "_tail", "blocks", "model", "output_tokens", "release", "total_at_s",
    )  # fmt: skip

    def __init__(self, shadows: Shadows, exchange: "Exchange", gate: Gate) -> None:
        ask, model = exchange.ask, exchange.model
        assert ask is not None
        assert model is not None
        self._all = shadows
        self._gate = gate
        self._path = ask.path
        self._ask_body = ask.body
        self._request_id = f"{exchange.request_id}-shadow"
        self._settings = exchange.settings
        self._attempt: Attempt | None = None
        self._done = False
        self._status = 0
        self._tail = b""
        self.model = model.name
        self.release = 0
        self.lane = exchange.lane
        self.tier = "batch"
        self.stream = exchange.stream
        self.prompt_tokens = self.uncached_tokens = exchange.prompt_tokens
        self.output_tokens = exchange.output_tokens
        self.context_tokens = exchange.context_tokens
        self.kv_need_tokens = exchange.kv_need_tokens
        self.blocks = exchange.blocks
        self.arrived_at_s = exchange.arrived_at_s
        self.deadline_s = self.total_at_s = _NEVER
        self.tried: Sequence[Any] = ()
        self.admitted_at_s = 0.0
        self.admission = None

    @property
    def started(self) -> bool:
        return False

    def start(self, replica: LiveReplica, now_s: float) -> None:
        self.release = replica.release
        settings = self._settings
        self.total_at_s = now_s + settings.total_timeout_s
        lines = b"POST %b HTTP/1.1\r\nx-request-id: %b\r\n" % (self._path, self._request_id.encode())
        attempt = self._attempt = Attempt(
            self, replica, lines, self._ask_body, timeout_s=settings.first_byte_timeout_s
        )
        attempt.start(now_s, connect_timeout_s=settings.connect_timeout_s)

    def check_deadline(self, now_s: float) -> None:
        if now_s >= self.total_at_s:
            self.end("timeout")

    def end(self, outcome: str) -> None:
        if self._done:
            return
        self._done = True
        if self._attempt is not None:
            self._attempt.give_back()
        self._gate.leave(self, time.monotonic())
        self._all.note_end(self, outcome, read_usage(self._tail).total or 0)

    # From the gate: it is never queued.
    def on_admitted(self, replica: LiveReplica) -> None: ...

    def on_refused(self, error: Exception) -> None: ...

    # From the attempt.
    def on_head(self, attempt: Attempt, head: ResponseHead) -> None:
        self._status = head.status

    def on_first_byte(self, attempt: Attempt, now_s: float) -> None:
        self._gate.first_byte(self, now_s)

    def on_body(self, attempt: Attempt, body: bytes, *, complete: bool) -> None:
        self._tail = (self._tail + body)[-_TAIL_BYTES:]
        if complete:
            if self._status < 500:
                attempt.note_success(time.monotonic())
            self.end("ok" if self._status < 400 else "error")

    def on_closed(self, attempt: Attempt) -> bool:
        return False

    def on_fault(self, attempt: Attempt, fault: Fault, text: str) -> None:
        attempt.note_fault(fault, time.monotonic())
        self.end(fault.value)
