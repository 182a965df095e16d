"""Watches a stream of server-sent events as it passes: whole events only, and whether it really ended.

The bytes stay untouched. An event is held until it is complete, so that an error event can always follow.
"""

import orjson

# No answer needs an event this large; an endless one must not fill the memory.
_MAX_HELD_BYTES = 8 << 20


class EventGate:
    """`done`: the terminal event has passed. `failure`: why the stream must be cut, "" if it need not."""

    __slots__ = ("_held", "_last", "_previous", "_responses", "chunks", "done", "failure")

    def __init__(self, *, responses: bool = False) -> None:
        """`responses`: the events of /v1/responses, which end with a typed event instead of [DONE]."""
        self._held = b""
        self._previous = b""
        self._last = b""
        self._responses = responses
        self.chunks = 0
        self.done = False
        self.failure = ""

    def feed(self, piece: bytes) -> bytes:
        """What may go on to the client: all complete events, up to the first one that must not."""
        if self._held:
            piece = self._held + piece
            self._held = b""
        # The usual read is one event of one token; anything else is looked at event by event. The test is
        # for the frame of a JSON object, because parsing each event would cost a fifth of the whole relay.
        if (
            piece[:8] == b'data: {"'
            and piece[-3:] == b"}\n\n"
            and piece[8:14] != b'error"'
            and piece.index(b"\n") == len(piece) - 2
            and not self._responses
        ):
            self.chunks += 1
        else:
            piece = self._examine(piece)
        self._previous = self._last
        self._last = piece
        return piece

    def finish(self) -> bytes:
        """What was held when the upstream ended: passed on only if it is the terminal event."""
        held, self._held = self._held, b""
        if held and not self.failure:
            self._judge(held.replace(b"\r\n", b"\n").strip(b"\n"))
            if self.done:
                return held
        return b""

    @property
    def tail(self) -> bytes:
        """The end of the stream, with the usage event if there was one."""
        return self._previous + self._last

    def _examine(self, piece: bytes) -> bytes:
        whole_bytes = max(_end_of_last(b"\n\n", piece), _end_of_last(b"\r\n\r\n", piece))
        self._held = piece[whole_bytes:]
        if len(self._held) > _MAX_HELD_BYTES:
            self.failure = "the engine sent an endless event"
        whole = piece[:whole_bytes]
        separator = b"\r\n\r\n" if b"\r\n\r\n" in whole else b"\n\n"
        passed_bytes = 0
        for event in whole.split(separator):
            self._judge(event.replace(b"\r\n", b"\n"))
            if self.failure:
                self._held = b""
                return whole[:passed_bytes]
            passed_bytes += len(event) + len(separator)
        return whole

    def _judge(self, event: bytes) -> None:
        payload = event[6:] if event.startswith(b"data: {") and b"\n" not in event else _payload(event)
        if not payload:
            return
        if payload == b"[DONE]":
            self.done = True
        elif payload.startswith(b'{"error"'):
            self.failure = "the engine reported an error"
        elif payload[:2] == b'{"' and payload[-1:] == b"}" or _is_json(payload):
            self.chunks += 1
            self.done = self.done or (self._responses and _is_terminal(event))
        else:
            self.failure = "the engine sent a broken event"


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
