"""How an engine's response reaches the client: plain bodies and event streams, bytes untouched.

Of both kinds: `started` = content has left, so nothing can be tried again; `finished` = all of it is written;
`tail` = the part of the body where the usage is; `break_off` ends it so that nobody takes it for finished.
"""

import time
from collections.abc import Callable, Iterable

from pool.domain.gateway_settings import LaneSettings
from pool.gateway import response
from pool.gateway.early_end import NO_END, build_end
from pool.gateway.events import EventGate
from pool.gateway.openai import GatewayError, StreamInterrupted, StreamLate, error_event
from pool.gateway.pacing import Pacer
from pool.gateway.server import ClientConnection

# A plain answer is held up to this size, so that one cut within it can still become an honest 502.
_HOLD_BYTES = 64 * 1024
_USAGE_TAIL_BYTES = 4096
# So many late gaps in a row make a stream late; one or two are a garbage collection somewhere.
LATE_GAPS = 3
_GAPS_AT_ONCE = 256
_MOST_COPIED_BYTES = 1 << 20
_KEEP_ALIVE = b": keep-alive\n\n"
LATE = StreamLate("The stream fell behind its lane's limit. What came before this is not complete.")
CUT = StreamInterrupted("The answer was interrupted. What came before this is not complete.")


class PlainAnswer:
    """`head`: status line and header lines. `length`: what the engine announced, None = chunked."""

    __slots__ = (
        "_chunked", "_client", "_head", "_held", "_held_bytes", "_length", "bytes_out", "finished", "keeps_whole",
        "started", "tail", "whole",
    )  # fmt: skip

    chunks = 0
    late_gaps = 0
    late = False
    gaps: tuple[float, ...] = ()

    def __init__(
        self, client: ClientConnection, head: bytes, *, length: bytes | None, chunkable: bool
    ) -> None:
        self._client = client
        self._head = head
        self._length = length
        self._chunked = length is None and chunkable
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        self.keeps_whole = False
        self.whole: bytes | None = None
        """The body, once it has ended, where it was to be kept and was held up to its end."""
        self.started = False
        self.finished = False
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
            whole = body if self._held is None else b"".join((*self._held, body))
            self.tail = whole[-_USAGE_TAIL_BYTES:]
            if self.keeps_whole:
                self.whole = whole
            self._client.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(whole), whole))
        else:
            self._hold(body)
        self.finished = complete
        return complete

    def peek(self, body: bytes) -> bytes:
        """All that would be sent, were this its end; b"" once something has left."""
        if self.started:
            return b""
        return body if self._held is None else b"".join((*self._held, body))

    def break_off(self, error: GatewayError, *, request_id: str) -> None:
        self._client.cut()

    def _hold(self, body: bytes) -> None:
        if self._held is None:
            self._held = []
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
        self._write(b"".join(self._held or ()))
        self._held = None

    def _write(self, body: bytes) -> None:
        if body:
            self.tail = (self.tail + body)[-_USAGE_TAIL_BYTES:]
            self._client.write(response.chunk(body) if self._chunked else body)


class StreamAnswer:
    """`opened`: its head has left, maybe before the engine answered. `gaps`: seconds between reads that brought
    events, those that `on_gaps` was not given yet. `late_gaps`: how many were over the lane's limit; three in a
    row make it `late`."""

    __slots__ = (
        "_chunkable", "_client", "_gate", "_head", "_held", "_late_gap_s", "_late_row", "_most_chunks", "_on_gaps",
        "_on_late", "_pacer", "_prompt_tokens", "_send", "bytes_out", "copied", "finished", "gaps", "last_at_s", "late",
        "late_gaps", "opened", "started",
    )  # fmt: skip

    def __init__(
        self,
        client: ClientConnection,
        settings: LaneSettings,
        *,
        on_late: Callable[[], None],
        on_gaps: Callable[[list[float]], None],
        chunkable: bool,
    ) -> None:
        self._client = client
        self._gate = EventGate()
        self._head = b""
        self._held = b""
        self._chunkable = chunkable
        self._send = client.transport.write
        self._late_gap_s = settings.late_gap_ms / 1000
        self._late_row = 0
        self._on_late = on_late
        self._on_gaps = on_gaps
        self._pacer: Pacer | None = None
        if settings.pacing_ms or settings.group_events > 1:
            target_s = settings.pacing_ms / 1000
            self._pacer = Pacer(self._write_framed, target_s=target_s, group=settings.group_events)
        self._most_chunks = NO_END
        self._prompt_tokens = -1
        self.opened = False
        self.started = False
        self.finished = False
        self.bytes_out = 0
        self.last_at_s = 0.0
        self.gaps: list[float] = []
        self.late_gaps = 0
        self.late = False
        self.copied: list[bytes] | None = None
        """The beginning of what was passed on, where it is to be kept."""

    @property
    def chunks(self) -> int:
        return self._gate.chunks

    @property
    def tail(self) -> bytes:
        return self._gate.tail

    @property
    def last(self) -> bytes:
        """The piece with the last event of text."""
        return self._gate.last

    @property
    def recent(self) -> Iterable[bytes] | None:
        """The last pieces of a long answer."""
        return self._gate.recent

    @property
    def failure_text(self) -> bytes:
        """What the engine said in an error event."""
        return self._gate.failure_text

    @property
    def can_take(self) -> bool:
        """Whether `take` may be given what comes next."""
        return (
            self.started
            and self._chunkable
            and self._pacer is None
            and self._gate.is_clear
            and self._most_chunks == NO_END
        )

    def keep_alive(self, head: bytes) -> None:
        """A comment, before there is anything to send; the head leaves with the first."""
        if not self.opened:
            self._head = head
        self._write_framed(_KEEP_ALIVE)

    def begin(self, head: bytes, *, responses: bool, hides_usage: bool) -> None:
        """The engine has answered; unless it has left, the head leaves with the first event."""
        self._gate = EventGate(responses=responses, hides_usage=hides_usage)
        self._head = head

    def take(self, data: bytes) -> int:
        """Passes on what is whole and usual of a chunked body, framing and all: how many bytes that was."""
        taken, piece = self._gate.take(data)
        if taken:
            self.bytes_out += taken
            if self.copied is not None:
                self._copy(self.copied, piece)
            self._send(piece)
            self._note_gap()
        return taken

    def feed(self, body: bytes, *, complete: bool) -> bool:
        """True at the end: the stream is finished, or must be broken off."""
        gate = self._gate
        piece = gate.feed(body) if body else b""
        if not complete and not gate.failure:
            if gate.chunks >= self._most_chunks and self._end_early(piece):
                return True
            if piece:
                self._pass_on(piece)
            return False
        if not gate.failure:
            piece += gate.finish()
            self.finished = gate.done
        if piece or self.finished:
            self._pass_on(piece)
        return True

    def end_after(self, tokens: int, *, prompt_tokens: int) -> None:
        """From now on; an event counts as one. `prompt_tokens`: -1 = the caller asked for no figures of use. The
        next read must come to `feed`."""
        self._most_chunks = min(self._most_chunks, self._gate.chunks + tokens)
        self._prompt_tokens = prompt_tokens

    def hold_refusal(self, body: bytes, *, complete: bool) -> bytes | None:
        """Of an engine that refused after the head had left: all that it says, once that is complete."""
        self._held = (self._held + body)[:_HOLD_BYTES]
        if not complete:
            return None
        whole, self._held = self._held, b""
        return whole

    def end_unframed(self) -> bool:
        """For an engine that closes the connection instead of ending the body: True if all had come."""
        self.feed(b"", complete=True)
        return self.finished

    def break_off(self, error: GatewayError, *, request_id: str) -> None:
        """The body ends as HTTP wants it, because clients drop what they hold of one that is cut; the error
        event and the missing [DONE] say that the answer is not complete."""
        self.finished = True
        rest = self._pacer.flush() if self._pacer is not None else b""
        self._write_framed(rest + error_event(error, request_id=request_id))
        self._client.finish(keep_alive=False)

    def resume(self) -> None:
        """The client reads again: how long it did not is no gap of the engine's."""
        self.last_at_s = time.monotonic()

    def stop(self) -> None:
        if self._pacer is not None:
            self._pacer.stop()
        # A ring of references would wait for the collector.
        self._on_late = _do_nothing

    def _pass_on(self, piece: bytes) -> None:
        self.bytes_out += len(piece)
        if self.copied is not None:
            self._copy(self.copied, piece)
        if self._pacer is None:
            self._write_framed(piece)
        elif self.finished:
            self._write_framed(self._pacer.flush() + piece)
        else:
            self._pacer.add(piece)
        if self.started:
            self._note_gap()
        else:
            self.started = True
            self.last_at_s = time.monotonic()

    def _end_early(self, piece: bytes) -> bool:
        """False where the engine's own end has begun, or an early one cannot be said: then it goes on to its own."""
        gate = self._gate
        end = build_end(gate.last, prompt_tokens=self._prompt_tokens, output_tokens=gate.chunks)
        if gate.done or not end:
            self._most_chunks = NO_END
            return False
        gate.last = end
        self.finished = True
        self._pass_on(piece + end)
        return True

    def _copy(self, copied: list[bytes], piece: bytes) -> None:
        if self.bytes_out <= _MOST_COPIED_BYTES:
            copied.append(piece)

    def _write_framed(self, piece: bytes) -> None:
        # One write for all that there is: each costs a system call.
        if self._chunkable:
            framed = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            if self.finished:
                framed += response.LAST_CHUNK
            piece = framed
        if not self.opened:
            self.opened = True
            framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunkable else b"\r\n"
            piece = self._head + framing + piece
        self._send(piece)

    def _note_gap(self) -> None:
        now_s = time.monotonic()
        gap_s = now_s - self.last_at_s
        self.last_at_s = now_s
        self.gaps.append(gap_s)
        if gap_s > self._late_gap_s:
            self._note_late()
        else:
            self._late_row = 0
        if len(self.gaps) >= _GAPS_AT_ONCE:
            self._on_gaps(self.gaps)
            self.gaps.clear()

    def _note_late(self) -> None:
        self.late_gaps += 1
        self._late_row += 1
        if self._late_row == LATE_GAPS and not self.late:
            self.late = True
            self._on_late()


def _do_nothing() -> None: ...
