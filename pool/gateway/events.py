"""Watches a stream of server-sent events as it passes: whole events only, and whether it really ended.

The bytes stay untouched. An event is held until it is complete, so that an error event can always follow. The one
event that may be taken out is a usage event that the caller did not ask for.
"""

import re
from collections import deque
from typing import Final

import orjson

from pool.gateway.chunks import SIZES, read_size
from pool.gateway.endings import LOOP_TOKENS

# No answer needs an event this large; an endless one must not fill the memory.
_MAX_HELD_BYTES = 8 << 20
# Without going back: what has matched once matches in one way only.
_EVENT = rb'data: \{"(?!error")[^\n]*+(?<=\})\n\n'
# Of a long answer: 12 KB at the usual length of an event with one token.
_RECENT_PIECES: Final = 48
_MOST_RECENT_BYTES: Final = 1024
_USUAL_CHUNKS = re.compile(rb"(?>[0-9a-fA-F]{1,6}\r\n" + _EVENT + rb"\r\n)++")
_SIZES_AND_EVENTS = re.compile(rb"([0-9a-fA-F]{1,6})\r\n(" + _EVENT + rb")\r\n")


class EventGate:
    """`done`: the terminal event has passed. `failure`: why the stream must be cut, "" if it need not.
    `tail`: the last event that held figures of use, b"" if none did. `last`: the piece with the last event of text.
    `recent`: the last pieces of a long answer, None of a short one."""

    __slots__ = (
        "_held", "_hides_usage", "_responses", "chunks", "done", "failure", "failure_text", "last", "recent", "tail",
    )  # fmt: skip

    def __init__(self, *, responses: bool = False, hides_usage: bool = False) -> None:
        """`responses`: the events of /v1/responses, which end with a typed event instead of [DONE].
        `hides_usage`: the gateway asked for the usage event, the caller did not."""
        self._held = b""
        self._responses = responses
        self._hides_usage = hides_usage
        self.tail = b""
        self.last = b""
        self.recent: deque[bytes] | None = None
        self.chunks = 0
        self.done = False
        self.failure = ""
        self.failure_text = b""
        """What the engine said of it."""

    @property
    def is_clear(self) -> bool:
        """Nothing is held, and events need only be looked at as `take` does."""
        return not self._held and not self._responses and not self.failure

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Of a chunked body from the border of a chunk on: how many bytes are whole chunks of one usual event each,
        and these events, framed anew where there are several.

        Usual is what needs no look inside: the frame of a JSON object, no error, no usage. Parsing each event
        would cost a fifth of the whole relay; the HTTP parser and a second look at its pieces as much again.
        """
        # `find` and not `in`, which first takes the bytes for a number and costs a microsecond for finding that wrong.
        usage = data.find(b'"usage":')
        if usage >= 0:
            # What stands before the chunk with figures of use is as usual as ever.
            return self._take_many(data, data.rfind(b"\n", 0, data.rfind(b"\r\n", 0, usage)) + 1)
        end_of_data = len(data)
        line = data.find(b"\r\n", 0, 8)
        if (
            line > 0
            and SIZES.get(data[:line]) == end_of_data - line - 4
            and data[end_of_data - 5 :] == b"}\n\n\r\n"
            and data[line + 2 : line + 10] == b'data: {"'
            and data[line + 10 : line + 16] != b'error"'
            and data.find(b"\n", line + 2) == end_of_data - 4
        ):
            # The read that there is most of: one chunk of one token.
            self.chunks += 1
            self.last = data
            if self.chunks > LOOP_TOKENS:
                self._remember(data)
            return end_of_data, data
        return self._take_many(data, end_of_data)

    def _take_many(self, data: bytes, limit: int) -> tuple[int, bytes]:
        found = _USUAL_CHUNKS.match(data, 0, limit) if limit > 0 else None
        if found is None:
            return 0, b""
        taken = found.end()
        events = []
        for digits, event in _SIZES_AND_EVENTS.findall(data, 0, taken):
            # One that says something else ends elsewhere, or is a fault of the engine's that must be found.
            if (SIZES.get(digits) or read_size(digits)) != len(event):
                return 0, b""
            events.append(event)
        self.chunks += len(events)
        payload = b"".join(events)
        self.last = payload
        if self.chunks > LOOP_TOKENS:
            self._remember(payload)
        return taken, b"%x\r\n%b\r\n" % (len(payload), payload)

    def feed(self, piece: bytes) -> bytes:
        """What may go on to the client: all complete events, up to the first one that must not."""
        if self._held:
            piece = self._held + piece
            self._held = b""
        # The usual read is one event of one token; anything else is looked at event by event.
        if (
            piece[:8] == b'data: {"'
            and piece[-3:] == b"}\n\n"
            and piece[8:14] != b'error"'
            and piece.find(b"\n") == len(piece) - 2
            and not self._responses
            and piece.find(b'"usage":') < 0
        ):
            self.chunks += 1
            self.last = piece
            if self.chunks > LOOP_TOKENS:
                self._remember(piece)
            return piece
        return self._examine(piece)

    def finish(self) -> bytes:
        """What was held when the upstream ended: passed on only if it is the terminal event."""
        held, self._held = self._held, b""
        if held and not self.failure:
            self._judge(held.replace(b"\r\n", b"\n").strip(b"\n"))
            if self.done:
                return held
        return b""

    def _remember(self, piece: bytes) -> None:
        """Of a long answer: whether it ended in a loop is said of its last pieces."""
        if self.recent is None:
            self.recent = deque(maxlen=_RECENT_PIECES)
        self.recent.append(piece if len(piece) <= _MOST_RECENT_BYTES else piece[-_MOST_RECENT_BYTES:])

    def _examine(self, piece: bytes) -> bytes:
        whole_bytes = max(_end_of_last(b"\n\n", piece), _end_of_last(b"\r\n\r\n", piece))
        self._held = piece[whole_bytes:]
        if len(self._held) > _MAX_HELD_BYTES:
            self.failure = "the engine sent an endless event"
        whole = piece[:whole_bytes]
        separator = b"\r\n\r\n" if whole.find(b"\r\n\r\n") >= 0 else b"\n\n"
        passed: list[bytes] = []
        for event in whole.split(separator):
            shown = self._judge(event if event.find(b"\r") < 0 else event.replace(b"\r\n", b"\n"))
            if self.failure:
                self._held = b""
                passed.append(b"")
                break
            if shown:
                passed.append(event)
        return separator.join(passed)

    def _judge(self, event: bytes) -> bool:
        """False if the client must not see it."""
        payload = event[6:] if event.startswith(b"data: {") and event.find(b"\n") < 0 else _payload(event)
        if not payload:
            return True
        if payload == b"[DONE]":
            self.done = True
        elif payload.startswith(b'{"error"'):
            self.failure = "the engine reported an error"
            self.failure_text = payload[:4096]
        elif payload[:2] == b'{"' and payload[-1:] == b"}" or _is_json(payload):
            return self._note(event, payload)
        else:
            self.failure = "the engine sent a broken event"
        return True

    def _note(self, event: bytes, payload: bytes) -> bool:
        if payload.find(b'"usage":') >= 0 and payload.find(b'"usage":null') < 0:
            self.tail = payload
            if self._hides_usage and payload.find(b'"choices":[]') >= 0:
                return False
        self.chunks += 1
        if payload.find(b'output_text.delta"' if self._responses else b'"choices":[{') >= 0:
            self.last = payload
            if self.chunks > LOOP_TOKENS:
                self._remember(payload)
        self.done = self.done or (self._responses and _is_terminal(event))
        return True


def _end_of_last(separator: bytes, piece: bytes) -> int:
    """0 if there is none."""
    start = piece.rfind(separator)
    return start + len(separator) if start >= 0 else 0


def _payload(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip()


def _is_json(payload: bytes) -> bool:
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return True


def _is_terminal(event: bytes) -> bool:
    name = event.partition(b"\n")[0]
    return name in (b"event: response.completed", b"event: response.incomplete", b"event: response.failed")
