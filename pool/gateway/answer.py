"""How an engine's response reaches the client: plain bodies and event streams, bytes untouched.

Of both kinds: `started` = bytes have left, so nothing can be tried again; `finished` = all of it is written;
`tail` = the end of the body, where the usage is; `break_off` ends it so that nobody takes it for finished.
"""

from pool.gateway import response
from pool.gateway.events import EventGate
from pool.gateway.openai import StreamInterrupted, error_event
from pool.gateway.server import ClientConnection

# A plain answer is held up to this size, so that one cut within it can still become an honest 502.
_HOLD_BYTES = 64 * 1024
_USAGE_TAIL_BYTES = 4096


class PlainAnswer:
    """`head`: status line and header lines. `length`: what the engine announced, None = chunked."""

    __slots__ = (
        "_chunked", "_client", "_head", "_held", "_held_bytes", "_length", "bytes_out", "chunks", "finished",
        "started", "tail",
    )  # fmt: skip

    def __init__(
        self, client: ClientConnection, head: bytes, *, length: bytes | None, chunkable: bool
    ) -> None:
        self._client = client
        self._head = head
        self._length = length
        self._chunked = length is None and chunkable
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.started = False
        self.finished = False
        self.chunks = 0
        self.bytes_out = 0
        self.tail = b""

    def feed(self, body: bytes, *, complete: bool) -> bool:
        """True at the end."""
        self.bytes_out += len(body)
        if self.started:
            self._write(body)
            if complete and self._chunked:
                self._client.write(response.LAST_CHUNK)
        elif complete:
            whole = body if not self._held else b"".join((*self._held, body))
            self.tail = whole[-_USAGE_TAIL_BYTES:]
            self._client.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(whole), whole))
        else:
            self._hold(body)
        self.finished = complete
        return complete

    def break_off(self, *, request_id: str) -> None:
        self._client.cut()

    def _hold(self, body: bytes) -> None:
        self._held.append(body)
        self._held_bytes += len(body)
        if self._held_bytes > _HOLD_BYTES:
            self._start()

    def _start(self) -> None:
        self.started = True
        if self._length is not None:
            framing = b"content-length: %b\r\n\r\n" % self._length
        else:
            framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"
        self._client.write(self._head + framing)
        self._write(b"".join(self._held))
        self._held.clear()

    def _write(self, body: bytes) -> None:
        if body:
            self.tail = (self.tail + body)[-_USAGE_TAIL_BYTES:]
            self._client.write(response.chunk(body) if self._chunked else body)


class StreamAnswer:
    __slots__ = ("_chunkable", "_client", "_gate", "_head", "_send", "bytes_out", "finished", "started")

    def __init__(self, client: ClientConnection, head: bytes, *, responses: bool, chunkable: bool) -> None:
        self._client = client
        self._head = head
        self._gate = EventGate(responses=responses)
        self._chunkable = chunkable
        self._send = client.transport.write
        self.started = False
        self.finished = False
        self.bytes_out = 0

    @property
    def chunks(self) -> int:
        return self._gate.chunks

    @property
    def tail(self) -> bytes:
        return self._gate.tail

    def feed(self, body: bytes, *, complete: bool) -> bool:
        """True at the end: the stream is finished, or must be broken off."""
        gate = self._gate
        piece = gate.feed(body) if body else b""
        if not complete and not gate.failure:
            if piece:
                self._write(piece)
            return False
        if not gate.failure:
            piece += gate.finish()
            self.finished = gate.done
        if piece:
            self._write(piece)
        elif self.finished and self._chunkable:
            self._send(response.LAST_CHUNK)
        return True

    def end_unframed(self) -> bool:
        """For an engine that closes the connection instead of ending the body: True if all had come."""
        self.feed(b"", complete=True)
        return self.finished

    def break_off(self, *, request_id: str) -> None:
        """The body ends as HTTP wants it, because clients drop what they hold of one that is cut; the error
        event and the missing [DONE] say that the answer is not complete."""
        error = StreamInterrupted("The answer was interrupted. What came before this is not complete.")
        self.finished = True
        self._write(error_event(error, request_id=request_id))
        self._client.finish(keep_alive=False)

    def _write(self, piece: bytes) -> None:
        # One write for all that there is: each costs a system call.
        self.bytes_out += len(piece)
        if self._chunkable:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            if self.finished:
                piece += response.LAST_CHUNK
        if self.started:
            self._send(piece)
            return
        self.started = True
        framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunkable else b"\r\n"
        self._send(self._head + framing + piece)
