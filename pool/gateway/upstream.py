"""The HTTP/1.1 client side: connections to one engine, kept alive and pooled. Knows no routing."""

import asyncio
import time
from enum import Enum
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from pool.gateway.chunks import ChunkedBody
from pool.gateway.heads import Heads
from pool.gateway.response import ResponseHead, read_headers

# vLLM's server closes a connection that is idle for 5 s; a request must not meet that moment.
IDLE_MAX_S = 4.0
_MAX_IDLE = 256
# One write joins head and body up to this size; above it a copy costs more than a second buffer.
_JOIN_BYTES = 64 * 1024
# For a parser that comes to a message in the middle of its body.
_HEAD_OF_CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Receiver(Protocol):
    """Who a response is for."""

    def on_connected(self, connection: "UpstreamConnection") -> None: ...

    def on_connect_failed(self, *, timed_out: bool) -> None: ...

    def on_response(self, connection: "UpstreamConnection", body: bytes) -> None:
        """A read brought more of the response; `connection.complete` says whether that was the end."""

    def on_lost(self, connection: "UpstreamConnection", loss: "Loss") -> None:
        """The connection ended before the response did."""


class Loss(Enum):
    CLOSED = "closed"
    RESET = "reset"
    NO_HTTP = "no_http"  # What came is no valid HTTP.


class Taker(Protocol):
    """Who may have more of a chunked body before the parser, framing and all."""

    def take(self, data: bytes) -> int:
        """From the border of a chunk on: how much of it was whole and usual, and is passed on."""


class UpstreamConnection(asyncio.Protocol):
    """`head`: None until it has come. `in_step`: set by the receiver: has each read of a stream first."""

    __slots__ = (
        "_chunks", "_headers", "_parser", "_pieces", "complete", "got_bytes", "head", "idle_since_s", "in_step",
        "is_paused", "is_spoiled", "keeps_alive", "pool", "receiver", "reused", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.receiver: Receiver | None = None
        self.reused = False
        self.idle_since_s = 0.0
        self.is_spoiled = self.is_paused = False
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self.head: ResponseHead | None = None
        self.in_step: Taker | None = None
        self.complete = self.keeps_alive = self.got_bytes = False
        self._chunks: ChunkedBody | None = None
        """Set where the body is read here instead of by the parser."""

    def send(self, receiver: Receiver, head: bytes, body: bytes | bytearray) -> None:
        self.receiver = receiver
        self._reset()
        if len(body) <= _JOIN_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def pause(self, *, paused: bool) -> None:
        """Whether more is read. Nobody who gets it next finds it paused."""
        if not self.transport.is_closing():
            self.is_paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def release(self) -> None:
        """Back to the pool after a complete response, if it can carry another request; else closed, which
        ends the request at the engine."""
        self.receiver = None
        if self.is_paused:
            self.pause(paused=False)
        reusable = (
            self.complete
            and self.keeps_alive
            and not self.is_spoiled
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )
        if not reusable or not self.pool.keep(self):
            self.transport.abort()

    def offer(self) -> None:
        """To the pool, unused: whoever asked for it has gone meanwhile."""
        if not self.pool.keep(self):
            self.transport.abort()

    # Protocol.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport for Unix sockets is no asyncio.Transport by class, only by its methods.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            # Nothing was asked: the peer breaks the protocol, or tells why it closes.
            self.transport.abort()
        elif self._chunks is not None:
            self._feed_chunks(receiver, self._chunks, data)
        elif self.got_bytes:
            self._feed(receiver, data)
        else:
            self.got_bytes = True
            if not self._recognise(receiver, data):
                self._feed(receiver, data)
                self._remember(data)

    def _recognise(self, receiver: Receiver, data: bytes) -> bool:
        """True if its head is known, and what came is taken care of without the parser."""
        known = HEADS.find(data)
        if known is not None:
            self.head, start, _ = known
            self.complete = self.keeps_alive = True
            receiver.on_response(self, data[start:])
            return True
        stream = HEADS.find_stream(data)
        if stream is None:
            return False
        self.head, start = stream
        self.keeps_alive = True
        self._chunks = ChunkedBody()
        receiver.on_response(self, b"")
        if len(data) > start and self.receiver is receiver:
            self._feed_chunks(receiver, self._chunks, data[start:])
        return True

    def _remember(self, data: bytes) -> None:
        """Only the usual answer: others can have no body whatever their length says, or come before it."""
        head = self.head
        if head is None or not head.is_plain or data[:12] != b"HTTP/1.1 200":
            return
        if head.length is None:
            if head.is_chunked:
                HEADS.remember_stream(data, head)
        elif self.complete and self.keeps_alive:
            HEADS.remember(data, head)

    def _feed_chunks(self, receiver: Receiver, chunks: ChunkedBody, data: bytes) -> None:
        if self.in_step is not None and not chunks.held:
            taken = self.in_step.take(data)
            if taken == len(data) or self.receiver is not receiver:
                return
            data = data[taken:]
        body = chunks.feed(data)
        if chunks.complete:
            self.complete = True
            self.is_spoiled = chunks.has_more
        if body or chunks.complete:
            receiver.on_response(self, body)
        if chunks.unusual and self.receiver is receiver:
            self._leave_to_parser(receiver, chunks.held)

    def _leave_to_parser(self, receiver: Receiver, rest: bytes) -> None:
        """`rest`: from the border of a chunk on. The parser has not seen this message before."""
        head, self._chunks = self.head, None
        self._parser.feed_data(_HEAD_OF_CHUNKS)
        self.head = head
        self._feed(receiver, rest)

    def _feed(self, receiver: Receiver, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_spoiled = True
            if not self.complete:
                self.receiver = None
                self.transport.abort()
                receiver.on_lost(self, Loss.NO_HTTP)
                return
        if self.head is not None:
            pieces = self._pieces
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            receiver.on_response(self, body)

    def connection_lost(self, exc: Exception | None) -> None:
        receiver, self.receiver = self.receiver, None
        self.pool.forget(self)
        if receiver is not None:
            receiver.on_lost(self, Loss.RESET if exc else Loss.CLOSED)

    # Parser. What comes after the whole answer is no part of it.
    def on_message_begin(self) -> None:
        self.is_spoiled = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self.complete:
            self.head = read_headers(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.head is None:
            self._headers.clear()  # Of an interim answer; the real one follows.
        elif not self.complete:
            self.complete = True
            # Only here the parser knows: it forgets the message with the end of this call.
            self.keeps_alive = self._parser.should_keep_alive()

    def _reset(self) -> None:
        self.head = self.in_step = None
        self.complete = self.keeps_alive = self.got_bytes = False
        self._chunks = None
        self._headers.clear()
        self._pieces.clear()


HEADS: Heads[ResponseHead] = Heads()
"""Heads of engines' answers; they hold nothing of a caller."""


class Pool:
    """The connections to one engine. No upper bound of its own: slots bound the requests."""

    def __init__(self, address: str, *, key: str) -> None:
        """`address`: `unix:/path.sock` or `http://host:port`."""
        self._idle: list[UpstreamConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        url = urlsplit(address)
        self._path = url.path if url.scheme == "unix" else ""
        self._host = url.hostname or "127.0.0.1"
        self._port = url.port or 80
        host = url.netloc or "engine"
        self.head_prefix = (
            f"host: {host}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n".encode()
        )
        """The lines that every request to this engine begins with. Holds the engine's key: never logged."""

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    def find_idle(self) -> UpstreamConnection | None:
        """The connection that was used last, taken out of the pool."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def connect(self, receiver: Receiver, *, timeout_s: float) -> None:
        """Tells the receiver, later, either on_connected or on_connect_failed."""
        task = asyncio.get_running_loop().create_task(self._connect(receiver, timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self, connection: UpstreamConnection) -> bool:
        if self._closed or len(self._idle) >= _MAX_IDLE:
            return False
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)
        return True

    def forget(self, connection: UpstreamConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def close_idle(self, *, before_s: float) -> None:
        """Closes what has been idle since before that time; the oldest come first."""
        while self._idle and self._idle[0].idle_since_s <= before_s:
            self._idle.pop(0).transport.abort()

    def reopen(self) -> None:
        self._closed = False

    def close(self) -> None:
        """For an engine that gets no further request; running ones go on."""
        self._closed = True
        self.close_idle(before_s=float("inf"))

    async def _connect(self, receiver: Receiver, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                if self._path:
                    opening = loop.create_unix_connection(lambda: UpstreamConnection(self), self._path)
                else:
                    opening = loop.create_connection(lambda: UpstreamConnection(self), self._host, self._port)
                _, connection = await opening
        except (OSError, TimeoutError) as exc:
            receiver.on_connect_failed(timed_out=isinstance(exc, TimeoutError))
            return
        receiver.on_connected(connection)
