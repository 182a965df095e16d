"""One request's life after authentication: attempts, relay, time-outs, cancel, accounting.

Written as callbacks, not as a task: no await lies between looking at a replica's load and taking its slot,
and a task per request would cost more than all the rest of this module.
"""

import re
import time
from typing import Protocol

from pool.domain.routing_table import KeyRoute
from pool.gateway import response
from pool.gateway.answer import PlainAnswer, StreamAnswer
from pool.gateway.choice import Target, choose_replica, find_target
from pool.gateway.config import Config
from pool.gateway.metrics import Series
from pool.gateway.openai import Ask, GatewayError, UpstreamFailed, UpstreamTimeout, read_ask
from pool.gateway.replicas import LiveReplica
from pool.gateway.request import Request
from pool.gateway.routes import Routes
from pool.gateway.server import ClientConnection
from pool.gateway.upstream import UpstreamConnection

# The first try and two more, each at another replica.
_MAX_ATTEMPTS = 3
# A request that an engine had received when it died may have killed it: one more engine gets it, not all.
_MAX_RESETS = 1
_NEVER = float("inf")
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_OUTPUT_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')


class Plane(Protocol):
    """The rest of the gateway, as an exchange sees it."""

    config: Config
    routes: Routes
    exchanges: "set[Exchange]"
    draining: bool

    def new_request_id(self) -> str: ...

    def begin(self, exchange: "Exchange") -> None:
        """Its target is known."""

    def account(self, exchange: "Exchange", *, outcome: str) -> None:
        """It is over; called once for each."""


class Exchange:
    """Public fields are what accounting reads. `*_at_s` count on the monotonic clock."""

    __slots__ = (
        "_ask", "_client", "_connection", "_idle_timeout_s", "_is_stale", "_plane", "_request", "_resets", "_tried",
        "answer", "attempts", "caller", "client_tag", "deadline_s", "done", "ended_at_s", "first_byte_at_s",
        "replica", "request_id", "series", "spilled", "started_at", "started_at_s", "status", "target",
    )  # fmt: skip

    def __init__(self, plane: Plane, client: ClientConnection, request: Request, caller: KeyRoute) -> None:
        self._plane = plane
        self._client = client
        self._request = request
        self._ask: Ask | None = None
        self._connection: UpstreamConnection | None = None
        self._tried: list[LiveReplica] = []
        self._resets = 0
        self._idle_timeout_s = plane.config.stream_idle_timeout_s
        self._is_stale = False
        self.answer: PlainAnswer | StreamAnswer | None = None
        self.caller = caller
        self.request_id = plane.new_request_id()
        self.client_tag = request.headers.get(b"x-request-id", b"")
        self.target: Target | None = None
        self.series: Series | None = None
        """Where it is counted, once its target is known."""
        self.replica: LiveReplica | None = None
        """The one that serves, or served, this request."""
        self.deadline_s = _NEVER
        self.done = False
        self.attempts = 0
        self.spilled = False
        self.status = 0
        self.started_at = time.time()
        self.started_at_s = time.monotonic()
        self.first_byte_at_s = 0.0
        self.ended_at_s = 0.0

    def start(self) -> None:
        """May answer at once (`done`), when the request is refused."""
        plane = self._plane
        plane.exchanges.add(self)
        try:
            self._ask = read_ask(self._request.path, self._request.body)
            self.target = find_target(plane.routes, self._request, self._ask, self.caller)
        except GatewayError as error:
            self._refuse(error)
            return
        plane.begin(self)
        try:
            self._attempt(self.target, self._ask)
        except GatewayError as error:
            self._refuse(error)

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
            self.deadline_s = _NEVER
            connection.transport.pause_reading()
        else:
            self.deadline_s = time.monotonic() + self._plane.config.stream_idle_timeout_s
            connection.transport.resume_reading()

    # From the clock.
    def check_deadline(self, now_s: float) -> None:
        if now_s >= self.deadline_s:
            self._fail(UpstreamTimeout("The engine did not answer in time."))

    def cut_off(self) -> None:
        """Ends a request that outlives the drain."""
        self._fail(UpstreamFailed("The gateway shuts down. Try again."))

    # From the engine's side.
    def on_connected(self, connection: UpstreamConnection) -> None:
        if self.done or self._ask is None:
            connection.offer()
        else:
            self._send(connection, self._ask)

    def on_connect_failed(self, reason: str) -> None:
        if not self.done:
            # An engine that dies at once when an old connection is used may have died of this request.
            self._resets += self._is_stale
            self._try_elsewhere(f"The engine could not be reached ({reason}).")

    def on_lost(self, connection: UpstreamConnection, reason: str) -> None:
        answer, self._connection = self.answer, None
        if answer is None and connection.reused and not connection.got_bytes:
            # The engine closed an idle connection at the moment of its use: a fresh one tells more.
            self._is_stale = True
            connection.pool.close_idle(before_s=_NEVER)
            connection.pool.connect(self)
        elif isinstance(answer, StreamAnswer) and answer.end_unframed():
            self._end("ok")
            self._client.finish(keep_alive=self._keep_alive)
        elif answer is None or (isinstance(answer, StreamAnswer) and not answer.started):
            self._resets += 1
            self._try_elsewhere("The engine broke off before it answered.")
        else:
            self._fail(UpstreamFailed("The engine broke off its answer."))

    def on_response(self, connection: UpstreamConnection, body: bytes) -> None:
        now_s = time.monotonic()
        answer = self.answer
        if answer is None:
            answer = self._open_answer(connection, now_s)
            if answer is None:
                return
        if not self.first_byte_at_s and body:
            self.first_byte_at_s = now_s
        self.deadline_s = now_s + self._idle_timeout_s
        if not answer.feed(body, complete=connection.complete):
            return
        if answer.finished:
            self._end("ok" if self.status < 400 else "client_error" if self.status < 500 else "engine_error")
            self._client.finish(keep_alive=self._keep_alive)
        else:
            self._fail(UpstreamFailed("The engine broke off its answer."))

    # Inside.
    @property
    def _keep_alive(self) -> bool:
        request = self._request
        return request.keep_alive and request.version != "1.0" and not self._plane.draining

    def _attempt(self, target: Target, ask: Ask) -> None:
        """One synchronous step from the look at the loads to the slot. Raises GatewayError."""
        now_s = time.monotonic()
        replica, self.spilled = choose_replica(target, tried=self._tried, now_s=now_s)
        replica.take_slot(now_s)
        self.replica = replica
        self._tried.append(replica)
        self.attempts += 1
        connection = replica.pool.find_idle()
        if connection is None:
            replica.pool.connect(self)
        else:
            self._send(connection, ask)

    def _send(self, connection: UpstreamConnection, ask: Ask) -> None:
        upstream_id = self.request_id if self.attempts == 1 else f"{self.request_id}-{self.attempts}"
        head = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\nx-request-id: %b\r\n\r\n" % (
            self._request.path, connection.pool.head_prefix, len(ask.body), upstream_id.encode(),
        )  # fmt: skip
        self._connection = connection
        config = self._plane.config
        timeout_s = config.first_byte_timeout_s if ask.stream else config.answer_timeout_s
        self.deadline_s = time.monotonic() + timeout_s
        connection.send(self, head, ask.body)

    def _try_elsewhere(self, failure: str) -> None:
        """Another replica, since nothing has left for the client; else the failure is told."""
        self.answer = None
        self._is_stale = False
        self.deadline_s = _NEVER
        if self.replica is not None:
            self.replica.eject(time.monotonic())
            self.replica.free_slot()
            self.replica = None
        try:
            if self.attempts < _MAX_ATTEMPTS and self._resets <= _MAX_RESETS and self.target and self._ask:
                self._attempt(self.target, self._ask)
                return
        except GatewayError:
            pass  # No replica is left that was not tried; that one failed says more.
        self._refuse(UpstreamFailed(f"{failure} Try again."))

    def _open_answer(self, connection: UpstreamConnection, now_s: float) -> PlainAnswer | StreamAnswer | None:
        """None if the engine's answer is none that a client may see."""
        status = self.status = connection.status
        assert self.replica is not None
        assert self.target is not None
        self.replica.note_answer(now_s)
        if status in (401, 403) or 300 <= status < 400:
            # The gateway's own key or address is wrong; the client can do nothing about it.
            self._fail(UpstreamFailed("The engine refused the gateway."))
            return None
        chunkable = self._request.version != "1.0"
        lines, length, is_stream = response.read_headers(connection.headers)
        own = f"x-sluice-release: {self.replica.release}\r\nx-sluice-replica: {self.replica.id}\r\n" \
            f"x-sluice-lane: {self.target.lane}\r\nx-request-id: {self.request_id}\r\n"  # fmt: skip
        ending = b"" if self._keep_alive else b"connection: close\r\n"
        head = response.status_line(status) + lines + own.encode() + ending
        if is_stream and status == 200:
            responses = self._request.path == b"/v1/responses"
            self.answer = StreamAnswer(self._client, head, responses=responses, chunkable=chunkable)
        else:
            self.answer = PlainAnswer(self._client, head, length=length, chunkable=chunkable)
        return self.answer

    def _fail(self, error: GatewayError) -> None:
        """Tells the client in the way that is still open."""
        answer = self.answer
        if answer is None or not answer.started:
            self._refuse(error)
            return
        self._end("interrupted")
        answer.break_off(request_id=self.request_id)

    def _refuse(self, error: GatewayError) -> None:
        self.status = error.status
        keep_alive = self._keep_alive
        self._client.write(response.refusal(error, request_id=self.request_id, close=not keep_alive))
        self._end(error.code)
        self._client.finish(keep_alive=keep_alive)

    def _end(self, outcome: str) -> None:
        """The one place where an exchange ends: everything that it took is given back here."""
        if self.done:
            return
        self.done = True
        self.ended_at_s = time.monotonic()
        self._plane.exchanges.discard(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
        if self.replica is not None:
            self.replica.free_slot()
        self._plane.account(self, outcome=outcome)


def read_usage(tail: bytes) -> tuple[int | None, int | None]:
    """Prompt and output tokens from the end of an answer; None where the engine did not say."""
    start = tail.rfind(b'"usage":{')
    if start < 0:
        return None, None
    prompt = _PROMPT_TOKENS.search(tail, start)
    output = _OUTPUT_TOKENS.search(tail, start)
    return int(prompt[1]) if prompt else None, int(output[1]) if output else None
