"""One request's life after authentication: reading, admission, attempts, relay, time-outs, cancel, accounting.

Written as callbacks, not as a task: no await lies between looking at a replica's load and taking its slot,
and a task per request would cost more than all the rest of this module.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pool.domain.breaker import Breaker, Fault, read_fault
from pool.domain.gateway_settings import LaneSettings
from pool.domain.quarantine import Quarantine, hash_request
from pool.domain.retries import DEATHS, find_objection, may_retry
from pool.domain.routing_table import KeyRoute
from pool.domain.token_estimate import needs_count
from pool.gateway import response
from pool.gateway.admission import Gate
from pool.gateway.answer import PlainAnswer, StreamAnswer
from pool.gateway.ask import Ask, ask_here, ask_of
from pool.gateway.choice import find_gate, find_model, find_pin, find_release
from pool.gateway.config import Config
from pool.gateway.limits import Charge, LeaseMissing, Limits
from pool.gateway.metrics import Series
from pool.gateway.openai import (
    GatewayError,
    Quarantined,
    StreamInterrupted,
    StreamLate,
    UpstreamFailed,
    UpstreamTimeout,
)
from pool.gateway.reading.body import Reading
from pool.gateway.reading.jobs import Job
from pool.gateway.reading.readers import INLINE_BYTES, Readers
from pool.gateway.replicas import LiveReplica
from pool.gateway.request import Request
from pool.gateway.routes import ModelView, Routes
from pool.gateway.server import ClientConnection
from pool.gateway.upstream import Loss, UpstreamConnection

_NEVER = float("inf")
# A request that names no limit is expected to answer at this length, for what it reserves.
_USUAL_OUTPUT_TOKENS = 256
# A shorter prompt has no whole block that could be cached.
_FEWEST_BLOCK_TOKENS = 64
# The engine's word for what has happened stands at the beginning.
_FAULT_BYTES = 4096
_LATE = StreamLate("The stream fell behind its lane's limit. What came before this is not complete.")


class Plane(Protocol):
    """The rest of the gateway, as an exchange sees it."""

    config: Config
    routes: Routes
    limits: Limits
    readers: Readers
    quarantine: Quarantine
    exchanges: "set[Exchange]"
    draining: bool

    def new_request_id(self) -> str: ...

    def begin(self, exchange: "Exchange") -> None:
        """Its model and lane are known."""

    def account(self, exchange: "Exchange", *, outcome: str) -> None:
        """It is over; called once for each."""


class Exchange:
    """Also the gate's ticket. Public fields are what accounting reads. `*_at_s` count on the monotonic clock."""

    __slots__ = (
        "_client", "_connection", "_gate", "_is_stale", "_is_trial", "_job", "_plane", "_request", "admission",
        "admitted_at_s", "answer", "arrived_at_s", "ask", "attempts", "blocks", "caller", "charge", "client_tag",
        "context_tokens", "deadline_s", "done", "ended_at_s", "expected_cached", "first_byte_at_s", "kv_need_tokens",
        "lane", "losses", "model", "no_retry", "output_tokens", "pinned", "prompt_tokens", "release", "replica",
        "request_id", "series", "served_release", "settings", "shadow", "spilled", "started_at", "started_at_s",
        "status", "stream", "tier", "timeout_at_s", "total_at_s", "tried", "uncached_tokens",
    )  # fmt: skip

    def __init__(  # noqa: PLR0915  one object for a request's whole life costs less than several
        self, plane: Plane, client: ClientConnection, request: Request, caller: KeyRoute
    ) -> None:
        self._plane = plane
        self._client = client
        self._request = request
        self._connection: UpstreamConnection | None = None
        self._gate: Gate | None = None
        self._is_stale = False
        self._is_trial = False
        self._job: Job | None = None
        self.ask: Ask | None = None
        self.answer: PlainAnswer | StreamAnswer | None = None
        self.caller = caller
        self.tier = caller.tier
        self.request_id = plane.new_request_id()
        headers = request.headers
        self.client_tag = headers.get(b"x-request-id", b"")
        self.no_retry = headers.get(b"x-sluice-no-retry") == b"1"
        self.model: ModelView | None = None
        self.lane = ""
        self.settings = _USUAL_LANE
        self.release: int | None = None
        """The wished one."""
        self.served_release: int | None = None
        self.pinned = False
        self.shadow = False
        self.stream = False
        self.series: Series | None = None
        """Where it is counted, once its model and lane are known."""
        self.replica: LiveReplica | None = None
        """The one that serves, or served, this request."""
        self.charge: Charge | None = None
        self.tried: Sequence[Any] = ()
        self.attempts = 0
        self.losses = 0
        self.spilled = False
        self.status = 0
        self.done = False
        self.blocks: tuple[int, ...] = ()
        self.prompt_tokens = self.output_tokens = self.uncached_tokens = 0
        self.context_tokens = self.kv_need_tokens = self.expected_cached = 0
        self.admission: Any = None
        self.admitted_at_s = 0.0
        self.deadline_s = _NEVER
        """Of its wait in the queue."""
        self.timeout_at_s = _NEVER
        """Of what it waits for now, at the engine."""
        self.started_at = time.time()
        self.started_at_s = self.arrived_at_s = time.monotonic()
        self.total_at_s = _NEVER
        self.first_byte_at_s = 0.0
        self.ended_at_s = 0.0

    @property
    def started(self) -> bool:
        """Content has left for the client."""
        return self.answer is not None and self.answer.started

    def start(self) -> None:
        """May answer at once (`done`), when the request is refused."""
        plane = self._plane
        plane.exchanges.add(self)
        self._guarded(self._read)

    # From the client's side.
    def on_client_gone(self) -> None:
        self.status = 499
        self._end("client_gone")

    def on_client_slow(self, *, slow: bool) -> None:
        connection = self._connection
        if connection is None or connection.transport.is_closing():
            return
        if slow:
            # The client's own time-out counts while it holds up the stream.
            self.timeout_at_s = _NEVER
            connection.transport.pause_reading()
        else:
            if isinstance(self.answer, StreamAnswer):
                self.answer.resume()
            self.timeout_at_s = time.monotonic() + self.settings.idle_timeout_s
            connection.transport.resume_reading()

    # From the clock.
    def check_deadline(self, now_s: float) -> None:
        if now_s >= self.total_at_s:
            self._fail(UpstreamTimeout("The answer was not complete in time."), None)
            return
        answer = self.answer
        if answer is not None and answer.started and isinstance(answer, StreamAnswer):
            if self.timeout_at_s != _NEVER and now_s >= answer.last_at_s + self.settings.idle_timeout_s:
                self._fail(UpstreamTimeout("The engine fell silent."), Fault.IDLE_TIMEOUT)
        elif now_s >= self.timeout_at_s:
            self._fail(UpstreamTimeout("The engine did not answer in time."), Fault.FIRST_BYTE_TIMEOUT)
        elif self.stream and self.caller.keepalive_s is not None:
            self._keep_alive(now_s, self.caller.keepalive_s)

    def cut_off(self) -> None:
        """Ends a request that outlives the drain."""
        self._fail(UpstreamFailed("The gateway shuts down. Try again."), None)

    # From the readers.
    def on_read(self, result: Reading | GatewayError) -> None:
        self._job = None
        if self.done:
            return
        if isinstance(result, GatewayError):
            self._refuse(result)
        else:
            self._guarded(self._classify, ask_of(self._request.path, result))

    def on_counted(self, tokens: int | None) -> None:
        """None: it could not be counted, the guess stands."""
        self._job = None
        if not self.done and self.ask is not None:
            self._guarded(self._place, self.ask.prompt_tokens if tokens is None else tokens)

    # From the gate.
    def on_admitted(self, replica: LiveReplica) -> None:
        if not self.done:
            self._go(replica)

    def on_refused(self, error: GatewayError) -> None:
        if not self.done:
            self._refuse(error)

    # From the engine's side.
    def on_connected(self, connection: UpstreamConnection) -> None:
        if self.done or self.ask is None:
            connection.offer()
        else:
            self._send(connection, self.ask)

    def on_connect_failed(self, *, timed_out: bool) -> None:
        if not self.done:
            # An engine that dies at once when an old connection is used may have died of this request.
            fault = Fault.CONNECT_TIMEOUT if timed_out else Fault.CONNECT
            self._give_up(Fault.LOST if self._is_stale else fault, "The engine could not be reached.")

    def on_lost(self, connection: UpstreamConnection, loss: Loss) -> None:
        answer, self._connection = self.answer, None
        if connection.head is None and connection.reused and not connection.got_bytes:
            # The engine closed an idle connection at the moment of its use: a fresh one tells more.
            self._is_stale = True
            connection.pool.close_idle(before_s=_NEVER)
            connection.pool.connect(self, timeout_s=self.settings.connect_timeout_s)
        elif isinstance(answer, StreamAnswer) and connection.head is not None and answer.end_unframed():
            self._finish()
        elif loss is Loss.NO_HTTP:
            self._give_up(Fault.PROTOCOL, "The engine's answer is no valid HTTP.")
        elif self.started:
            self._give_up(Fault.BROKEN, "The engine broke off its answer.")
        else:
            self._give_up(Fault.LOST, "The engine broke off before it answered.")

    def on_response(self, connection: UpstreamConnection, body: bytes) -> None:
        head = connection.head
        assert head is not None
        now_s = time.monotonic()
        if not self.status:
            self._open_answer(head, now_s)
        if self.done:
            return
        answer = self.answer
        assert answer is not None
        if not self.first_byte_at_s and body:
            self._note_first_byte(now_s)
        if head.status >= 500 and connection.complete and self._is_taken_elsewhere(head.status, body):
            return
        if not answer.feed(body, complete=connection.complete):
            connection.in_step = answer if isinstance(answer, StreamAnswer) and answer.can_take else None
        elif not self.done:
            self._close_answer(answer)

    # Inside.
    def _is_taken_elsewhere(self, status: int, body: bytes) -> bool:
        """An engine's own failure that another engine may spare the client."""
        answer = self.answer
        if not isinstance(answer, PlainAnswer) or answer.started:
            return False
        return self._try_other(read_fault(status, answer.peek(body)[:_FAULT_BYTES]))

    def _close_answer(self, answer: PlainAnswer | StreamAnswer) -> None:
        if answer.finished:
            self._finish()
        elif isinstance(answer, StreamAnswer):
            fault = read_fault(500, answer.failure_text) if answer.failure_text else None
            self._give_up(fault or Fault.BROKEN, "The engine broke off its answer.")

    @property
    def _keep_open(self) -> bool:
        request = self._request
        return request.keep_alive and request.version != "1.0" and not self._plane.draining

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except GatewayError as error:
            self._refuse(error)

    def _read(self) -> None:
        request = self._request
        if len(request.body) > INLINE_BYTES:
            self._job = self._plane.readers.read(request.path, request.body, on_done=self.on_read)
            request.drop_body()
        else:
            self._classify(ask_here(request))

    def _classify(self, ask: Ask) -> None:
        self.ask = ask
        self.stream = ask.stream
        plane = self._plane
        model = self.model = find_model(plane.routes, ask.model, self.caller)
        ask.guard(model.settings)
        tokens = ask.measure(plane.readers.measures(model.name))
        if model.tokenizer is not None and needs_count(
            tokens, edges=model.edges, hard_limit=model.max_model_len
        ):
            self._job = plane.readers.count(model.tokenizer, ask.path, ask.body, on_done=self.on_counted)
            if self._job is not None:
                return
        self._place(tokens)

    def _place(self, tokens: int) -> None:
        """Lane, release, limits; then into the gate. Raises GatewayError."""
        model, ask, plane = self.model, self.ask, self._plane
        assert model is not None
        assert ask is not None
        lane = self.lane = model.find_lane(tokens)
        self.settings = model.lane_settings[lane]
        self.prompt_tokens = self.uncached_tokens = tokens
        self.output_tokens = _USUAL_OUTPUT_TOKENS if ask.max_tokens is None else ask.max_tokens
        self.context_tokens = tokens + (ask.max_tokens or 1)
        self.kv_need_tokens = tokens + min(self.output_tokens, _USUAL_OUTPUT_TOKENS * 4)
        plane.begin(self)
        self.total_at_s = self.started_at_s + self.settings.total_timeout_s
        self.deadline_s = self.started_at_s + self.settings.queue_timeout_s
        if plane.quarantine.active and plane.quarantine.refuses(self._hash(), self.started_at_s):
            raise Quarantined("This request was running when engines died; it is refused for a while.")
        pin = find_pin(model, self._request, self.caller)
        self.pinned = pin is not None
        self.release = pin if pin is not None else find_release(model, lane, ask, self._request, self.caller)
        try:
            self._charge(self.started_at_s)
        except LeaseMissing:
            # Another process holds what is left of the limit; the ledger is asked, then it is final.
            plane.limits.wait_for_lease(self._on_lease)
            return
        self._set_out()

    def _charge(self, now_s: float) -> None:
        """Raises RateLimited."""
        assert self.model is not None
        tokens = self.prompt_tokens + self.output_tokens
        self.charge = self._plane.limits.check(self.caller, self.model, self.lane, tokens, now_s)

    def _on_lease(self) -> None:
        if not self.done:
            self._guarded(self._charge, time.monotonic())
        if not self.done:
            self._guarded(self._set_out)

    def _set_out(self) -> None:
        assert self.model is not None
        assert self.ask is not None
        self.model.budget.note_request(self.started_at_s)
        self.ask.ask_for_usage()
        if self.model.has_choice and self.prompt_tokens > _FEWEST_BLOCK_TOKENS:
            self.blocks = self.ask.blocks
        self._enter(self.started_at_s)

    def _enter(self, now_s: float) -> None:
        """Raises GatewayError."""
        assert self.model is not None
        number, gate = find_gate(self.model, self.lane, self.release, self, pinned=self.pinned, now_s=now_s)
        self._gate = gate
        self.served_release = number
        self.spilled = number != self.release
        replica = gate.enter(self, now_s)
        if replica is not None:
            self._go(replica)

    def _go(self, replica: LiveReplica) -> None:
        """It has a slot there."""
        assert self.ask is not None
        now_s = self.admitted_at_s
        self.replica = replica
        self.tried = (*self.tried, replica)
        self.attempts += 1
        replica.last_request_at_s = now_s
        self._is_trial = replica.breaker.note_sent(now_s)
        connection = replica.pool.find_idle()
        if connection is None:
            replica.pool.connect(self, timeout_s=self.settings.connect_timeout_s)
        else:
            self._send(connection, self.ask)

    def _send(self, connection: UpstreamConnection, ask: Ask) -> None:
        upstream_id = self.request_id if self.attempts == 1 else f"{self.request_id}-{self.attempts}"
        head = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\nx-request-id: %b\r\n\r\n" % (
            ask.path, connection.pool.head_prefix, len(ask.body), upstream_id.encode(),
        )  # fmt: skip
        self._connection = connection
        if ask.stream:
            self.timeout_at_s = time.monotonic() + self.settings.first_byte_timeout_s
        connection.send(self, head, ask.body)

    def _open_answer(self, head: response.ResponseHead, now_s: float) -> None:
        """Refuses what no client may see."""
        replica = self.replica
        assert replica is not None
        assert self.ask is not None
        status = self.status = head.status
        replica.last_answer_at_s = now_s
        if status in (401, 403) or 300 <= status < 400:
            # The gateway's own key or address is wrong; the client can do nothing about it.
            self._give_up(Fault.MISDIRECTED, "The engine refused the gateway.")
            return
        ending = b"\r\n" if self._keep_open else b"\r\nconnection: close\r\n"
        lines = b"%b%bx-request-id: %b%b" % (
            head.lines, replica.lines_for(self.lane), self.request_id.encode(), ending,
        )  # fmt: skip
        chunkable = self._request.version != "1.0"
        if head.is_stream and status == 200:
            answer = self._stream_answer(chunkable=chunkable)
            answer.begin(lines, responses=self.ask.path == b"/v1/responses", hides_usage=self.ask.hides_usage)
            self.answer = answer
        elif isinstance(self.answer, StreamAnswer):
            self._refuse(UpstreamFailed(f"The engine answered {status}."))
        else:
            self.answer = PlainAnswer(self._client, lines, length=head.length, chunkable=chunkable)

    def _stream_answer(self, *, chunkable: bool) -> StreamAnswer:
        """The one whose head has left before, if there is one."""
        if isinstance(self.answer, StreamAnswer):
            return self.answer
        return StreamAnswer(
            self._client, self.settings, on_late=self._on_late, on_gaps=self._count_gaps, chunkable=chunkable
        )

    def _keep_alive(self, now_s: float, every_s: float) -> None:
        """A comment during a long wait; from then on a failure can only be told as an event."""
        if not self.lane or (self.answer is not None and not isinstance(self.answer, StreamAnswer)):
            return
        answer = self._stream_answer(chunkable=self._request.version != "1.0")
        if now_s >= max(answer.last_at_s, self.started_at_s) + every_s:
            self.answer = answer
            answer.last_at_s = now_s
            lines = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-sluice-lane: %b\r\n" \
                b"x-request-id: %b\r\n" % (self.lane.encode(), self.request_id.encode())  # fmt: skip
            answer.keep_alive(lines)

    def _note_first_byte(self, now_s: float) -> None:
        self.first_byte_at_s = now_s
        self.timeout_at_s = now_s + self.settings.idle_timeout_s
        assert self.replica is not None
        self.replica.last_byte_at_s = now_s
        if self._gate is not None:
            self._gate.first_byte(self, now_s)
        if self._is_trial:
            self.replica.breaker.note_first_byte()

    def _on_late(self) -> None:
        if self.settings.late_gap_policy == "end":
            self._fail(_LATE, None)

    def _count_gaps(self, gaps: list[float]) -> None:
        if self.series is not None:
            for gap_s in gaps:
                self.series.itl.observe(gap_s)

    def _try_other(self, fault: Fault | None) -> bool:
        """True if another replica has it now, or it was refused: its slot was given back."""
        if fault is None or self.replica is None or self.model is None or self._gate is None:
            return False
        now_s = time.monotonic()
        self._tell_breaker(self.replica.breaker, fault, now_s)
        if fault in DEATHS:
            self.losses += 1
            self._plane.quarantine.note_death(self._hash(), self.replica.engine, now_s)
        if find_objection(fault, self) or not self._has_other(now_s):
            return False
        if not may_retry(fault, self, budget=self.model.budget, now_s=now_s):
            return False
        self._give_back(now_s)
        self.status = 0
        self.first_byte_at_s = 0.0
        self._is_stale = False
        self.timeout_at_s = _NEVER
        if not isinstance(self.answer, StreamAnswer) or not self.answer.opened:
            self.answer = None
        try:
            self._enter(now_s)
        except GatewayError as error:
            self._refuse(error)
        return True

    def _has_other(self, now_s: float) -> bool:
        """A replica that was not tried; without one, the failure of this one says more."""
        assert self.model is not None
        try:
            _, gate = find_gate(self.model, self.lane, self.release, self, pinned=self.pinned, now_s=now_s)
        except GatewayError:
            return False
        return gate.can_serve(self, now_s)

    def _give_up(self, fault: Fault, failure: str) -> None:
        """Another replica, if nothing has left for the client; else the failure is told."""
        if not self._try_other(fault):
            self._fail(UpstreamFailed(f"{failure} Try again."), None)

    def _fail(self, error: GatewayError, fault: Fault | None) -> None:
        """Tells the client in the way that is still open."""
        if fault is not None and self.replica is not None:
            self._tell_breaker(self.replica.breaker, fault, time.monotonic())
        if not self.started:
            self._refuse(error)
            return
        answer = self.answer
        assert answer is not None
        if not isinstance(error, StreamLate):
            error = StreamInterrupted("The answer was interrupted. What came before this is not complete.")
        self._end("late" if isinstance(error, StreamLate) else "interrupted")
        answer.break_off(error, request_id=self.request_id)

    def _refuse(self, error: GatewayError) -> None:
        self.status = error.status
        answer, keep_open = self.answer, self._keep_open
        self._end(error.code)
        if isinstance(answer, StreamAnswer) and answer.opened:
            answer.break_off(error, request_id=self.request_id)
            return
        self._client.write(response.refusal(error, request_id=self.request_id, close=not keep_open))
        self._client.finish(keep_alive=keep_open)

    def _finish(self) -> None:
        """The whole answer has been written."""
        status = self.status
        if self.replica is not None:
            now_s = time.monotonic()
            fault = read_fault(status) if status >= 500 else None
            if fault is None:
                self.replica.breaker.note_success(now_s)
                self._is_trial = False
                if self._plane.quarantine.active:
                    self._plane.quarantine.note_completed(self._hash(), now_s)
        self._end("ok" if status < 400 else "client_error" if status < 500 else "engine_error")
        self._client.finish(keep_alive=self._keep_open)

    def _tell_breaker(self, breaker: Breaker, fault: Fault, now_s: float) -> None:
        self._is_trial = False
        breaker.note_failure(fault, now_s)

    def _hash(self) -> str:
        assert self.ask is not None
        return hash_request(self.ask.path, self.ask.body)

    def _give_back(self, now_s: float) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
        if self._is_trial and self.replica is not None:
            self.replica.breaker.drop_trial()
            self._is_trial = False
        if self._gate is not None:
            if self.admission is None:
                self._gate.abandon(self)
            else:
                self._gate.leave(self, now_s)

    def _end(self, outcome: str) -> None:
        """The one place where an exchange ends: everything that it took is given back here."""
        if self.done:
            return
        self.done = True
        self.ended_at_s = time.monotonic()
        self._plane.exchanges.discard(self)
        if self.stream and isinstance(self.answer, StreamAnswer):
            self.answer.stop()
        if self._job is not None:
            self._job.cancel()
        self._give_back(self.ended_at_s)
        self._plane.account(self, outcome=outcome)


_USUAL_LANE = LaneSettings()
