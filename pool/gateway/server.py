"""The HTTP/1.1 server side: one client's connection, its requests in order, its limits and time-outs."""

import asyncio
from collections import deque
from typing import Protocol, cast

import httptools

from pool.gateway import response
from pool.gateway.config import OWN_HEADERS, Config
from pool.gateway.openai import GatewayError, HeadersTooLarge, InvalidRequest, RequestTimeout, RequestTooLarge
from pool.gateway.regions import Regions
from pool.gateway.request import Request
from pool.gateway.tcp_info import read_retransmits

_WRITE_HIGH_BYTES = 256 * 1024
# A client that is told off while it still sends gets this long to read the answer before the reset.
_LINGER_S = 2.0
# A refused body up to this size is read to its end, so that the connection lives on.
_SWALLOW_BYTES = 64 * 1024
# Requests that a client sent ahead of the answers, and what they may hold together.
_PIPELINE_DEPTH = 16
_PIPELINE_BYTES = 1 << 20
# A body that trickles in may take this many times the time-out between two reads.
_WHOLE_BODY_FACTOR = 10
# Chunk sizes, extensions and trailers are bytes too, but not of the body.
_FRAMING_FACTOR = 8


class Exchange(Protocol):
    """What answers a request that cannot be answered at once."""

    def on_client_gone(self) -> None: ...

    def on_client_slow(self, *, slow: bool) -> None: ...


class Plane(Protocol):
    """The rest of the gateway, as a connection sees it."""

    config: Config
    regions: Regions
    clients: "set[ClientConnection]"
    draining: bool

    def new_request_id(self) -> str: ...

    def check_head(self, request: Request, peer: str) -> GatewayError | None: ...

    def recall(self, data: bytes, now_s: float) -> Request | None:
        """The request that just these bytes are, if its head is known."""

    def remember(self, data: bytes, request: Request) -> None: ...

    def serve(self, client: "ClientConnection", request: Request) -> Exchange | None: ...

    def note_refusal(self, error: GatewayError) -> None: ...


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_deaf", "_declined", "_exchange", "_loop", "_parser", "_plane", "_queue", "_reading", "_request_bytes",
        "_slow", "_starting", "deadline_s", "peer", "retransmits", "served", "tells_region",
        "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._reading: Request | None = None
        self._declined: Request | None = None
        """Whose head came with an offer of another protocol, and whose body is still to come."""
        self._queue: deque[Request] = deque()
        self._exchange: Exchange | None = None
        self._starting = False
        self._slow = False
        self._deaf = False  # Nothing that still comes in is looked at: the connection is about to end.
        self._request_bytes = 0
        self.served = 0
        self.deadline_s = self._loop.time() + plane.config.header_timeout_s
        self.peer = ""
        self.tells_region = True
        """Whether what it says of the client's region counts."""
        self.retransmits = 0
        """As they were when somebody last looked."""

    # For whoever answers.
    def read_retransmits(self) -> int | None:
        """Segments that had to be sent again to this client; None where the kernel does not say."""
        connection = self.transport.get_extra_info("socket")
        return None if connection is None else read_retransmits(connection)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def finish(self, *, keep_alive: bool) -> None:
        """The response is written; the next request may start."""
        self._exchange = None
        self.served += 1
        if keep_alive and not self._plane.draining:
            limits = self._plane.config
            self.deadline_s = self._loop.time() + (
                limits.write_timeout_s if self._slow else limits.idle_timeout_s
            )
            if self._queue:
                if not self._starting:
                    self._start_next()
            elif self._reading is not None:
                self._go_on_reading(self._reading)
        else:
            self._close()

    def cut(self) -> None:
        """Ends the connection so that nobody takes the response for complete."""
        self._exchange = None
        self.transport.abort()

    @property
    def is_idle(self) -> bool:
        return self._exchange is None and self._reading is None and not self._queue

    # Protocol.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport for Unix sockets is no asyncio.Transport by class, only by its methods.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, tuple) else ""
        self.tells_region = self._plane.regions.trusts(self.peer)
        self._plane.clients.add(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        # Not by its parts: compiled, what was None here would be taken for None after the parser too.
        if self.is_idle and not self._slow:
            request = self._plane.recall(data, self._loop.time())
            if request is not None:
                self._starting = True
                self._exchange = self._plane.serve(self, request)
                self._starting = False
                return
            self._parse(data)
            if len(self._queue) == 1 and self._reading is None and not self._deaf:
                self._plane.remember(data, self._queue[0])
        else:
            self._parse(data)
        if self._queue and self._exchange is None:
            self._start_next()

    def _parse(self, data: bytes) -> None:
        self._request_bytes += len(data)
        rest: bytes | memoryview = data
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as offer:
                    rest = self._decline(memoryview(rest)[offer.args[0] :])
        except (httptools.HttpParserError, httptools.HttpParserCallbackError):
            self._refuse_rest(InvalidRequest("The request is no valid HTTP/1.1."))
        else:
            self._check_sizes()

    def eof_received(self) -> None:
        """A client that closes its half has gone: whatever runs for it ends (FC-07)."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._plane.clients.discard(self)
        self._deaf = True
        self._queue.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_client_gone()

    def pause_writing(self) -> None:
        self._slow = True
        self.deadline_s = self._loop.time() + self._plane.config.write_timeout_s
        if self._exchange is not None:
            self._exchange.on_client_slow(slow=True)

    def resume_writing(self) -> None:
        self._slow = False
        self.deadline_s = self._loop.time() + self._plane.config.idle_timeout_s
        if self._exchange is not None:
            self._exchange.on_client_slow(slow=False)
        elif self._queue:
            self._start_next()

    def check_deadline(self, now_s: float) -> None:
        """Called a few times a second: cheaper than a timer for each request."""
        if now_s < self.deadline_s:
            return
        if self._slow:
            self.cut_off()
        elif self._exchange is not None:
            return
        elif self._deaf:
            self.cut_off()
        elif self._reading is not None:
            self._refuse_rest(RequestTimeout("The request did not come in time."))
            self._start_next()
        else:
            self._close()

    def cut_off(self) -> None:
        """Ends everything of this client at once."""
        self.transport.abort()

    # Parser.
    def on_message_begin(self) -> None:
        if self._declined is not None:
            self._reading, self._declined = self._declined, None
            return
        now_s = self._loop.time()
        self._reading = Request(now_s)
        if self._exchange is None:
            self.deadline_s = now_s + self._plane.config.header_timeout_s

    def on_url(self, url: bytes) -> None:
        request = self._reading
        if request is not None and not request.method:
            request.target += url
            request.head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._reading
        # What comes after the head is a trailer, which nobody needs.
        if request is not None and not request.method:
            request.head_bytes += len(name) + len(value) + 4
            name = name.lower()
            if name in OWN_HEADERS or name in self._plane.regions.headers:
                request.add_known_header(name, value)

    def on_headers_complete(self) -> None:
        request = self._reading
        if request is None or request.method:
            return
        request.end_head(self._parser.get_method(), self._parser.get_http_version())
        request.region = self._plane.regions.read(request.headers)
        if request.refusal is not None:
            # Where this request ends is in doubt, so nothing after it is read.
            self._refuse_rest(request.refusal)
            return
        if request.head_bytes > self._plane.config.max_header_bytes:
            request.refusal = HeadersTooLarge("The request's headers are larger than allowed.")
        elif request.content_length > self._plane.config.max_body_bytes:
            request.refusal = self._too_large()
        else:
            request.refusal = self._plane.check_head(request, self.peer)
        if request.refusal is None:
            self._await_body(request)
        elif request.expects_continue or request.is_chunked or request.content_length > _SWALLOW_BYTES:
            self._refuse_rest(request.refusal)

    def on_body(self, body: bytes) -> None:
        request = self._reading
        if request is None or request.refusal is not None:
            return
        request.add_body(body)
        if self._exchange is None and request.body_bytes != request.content_length:
            self._rearm_body(request)
        if request.body_bytes > self._plane.config.max_body_bytes:
            self._refuse_rest(self._too_large())

    def on_message_complete(self) -> None:
        request = self._reading
        if request is None:
            return
        self._reading = None
        request.keep_alive = self._parser.should_keep_alive()
        if self._parser.should_upgrade() and (request.content_length or request.is_chunked):
            # The parser takes what follows for the other protocol.
            self._declined = request
            return
        self._request_bytes = 0
        self._queue.append(request)

    # Inside.
    def _await_body(self, request: Request) -> None:
        if self._exchange is None:
            self.deadline_s = request.started_at_s + self._plane.config.body_timeout_s
            if request.expects_continue and not self._queue:
                self.transport.write(response.CONTINUE)

    def _go_on_reading(self, request: Request) -> None:
        """It began while others were answered; its time begins now."""
        request.started_at_s = self._loop.time()
        if request.method:
            if not request.body_bytes:
                self._await_body(request)
            else:
                self._rearm_body(request)
        else:
            self.deadline_s = request.started_at_s + self._plane.config.header_timeout_s

    def _rearm_body(self, request: Request) -> None:
        timeout_s = self._plane.config.body_timeout_s
        latest_s = request.started_at_s + _WHOLE_BODY_FACTOR * timeout_s
        self.deadline_s = min(self._loop.time() + timeout_s, latest_s)

    def _start_next(self) -> None:
        """Answers what waits, one after the other; a loop, so that a long pipeline needs no deep stack."""
        self._starting = True
        while self._queue and self._exchange is None and not self._slow:
            request = self._queue.popleft()
            if request.refusal is not None:
                self._refuse(request, request.refusal)
            else:
                self._exchange = self._plane.serve(self, request)
        self._starting = False
        self._pace_reading()

    def _refuse(self, request: Request, error: GatewayError) -> None:
        self._plane.note_refusal(error)
        keep_alive = request.keep_alive and not self._plane.draining
        answer = response.refusal(error, request_id=self._plane.new_request_id(), close=not keep_alive)
        # After a HEAD the client takes the next byte for the next response (RFC 9110, section 9.3.2).
        self.write(response.head_of(answer) if request.method == b"HEAD" else answer)
        if self._deaf and not self._queue:
            self._linger()
        else:
            self.finish(keep_alive=keep_alive)

    def _refuse_rest(self, error: GatewayError) -> None:
        """The request that is being read, and all that follows it, gets this one answer."""
        if self._deaf:
            return  # The parser, too, has found what was found before it.
        self._deaf = True
        request = self._reading or Request(self._loop.time())
        request.refusal = error
        request.keep_alive = False
        request.drop_body()
        self._reading = None
        self._queue.append(request)

    def _close(self) -> None:
        """What is written still leaves, within the time for it."""
        self._deaf = True
        self._queue.clear()
        self.transport.close()
        self.deadline_s = self._loop.time() + self._plane.config.write_timeout_s

    def _linger(self) -> None:
        """A reset while the client still sends would take the answer from it; so it may read first."""
        self._exchange = None
        self.deadline_s = self._loop.time() + _LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _decline(self, rest: memoryview) -> memoryview:
        """Who offers another protocol (h2c) is answered in HTTP/1.1, as if it had not. What follows a CONNECT is no
        HTTP. Returns what is still to be read."""
        request, last = self._declined, self._queue[-1] if self._queue else None
        if last is not None and last.method == b"CONNECT":
            self._deaf = True
            last.keep_alive = False
        if self._deaf:
            return rest[:0]
        self._parser = httptools.HttpRequestParser(self)
        if request is not None:
            ending = b"" if request.keep_alive else b"connection: close\r\n"
            coding = b"transfer-encoding: chunked"
            framing = coding if request.is_chunked else b"content-length: %d" % request.content_length
            self._parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%b%b\r\n\r\n" % (ending, framing))
        return rest

    def _check_sizes(self) -> None:
        request = self._reading
        if request is not None:
            limits = self._plane.config
            if not request.method and self._request_bytes > limits.max_header_bytes:
                self._refuse_rest(HeadersTooLarge("The request's headers are larger than allowed."))
            elif self._request_bytes > 2 * limits.max_header_bytes + _FRAMING_FACTOR * request.body_bytes:
                self._refuse_rest(self._too_large())
        if len(self._queue) > 1 or (self._queue and self._exchange is not None):
            self._pace_reading()

    def _pace_reading(self) -> None:
        if self._deaf or self.transport.is_closing():
            return
        queue = self._queue
        if len(queue) > _PIPELINE_DEPTH or sum(one.body_bytes for one in queue) > _PIPELINE_BYTES:
            self.transport.pause_reading()
        elif not self.transport.is_reading():
            self.transport.resume_reading()

    def _too_large(self) -> RequestTooLarge:
        limit = self._plane.config.max_body_bytes
        return RequestTooLarge(f"The body is larger than {limit} bytes.", limit_bytes=limit)
