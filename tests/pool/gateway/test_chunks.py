"""Streams that are relayed without the parser, framing and all, are those that the parser would give out."""

import asyncio
from typing import Any, cast

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pool.gateway.chunks import ChunkedBody
from pool.gateway.events import EventGate
from pool.gateway.response import LAST_CHUNK, chunk
from pool.gateway.upstream import HEADS, Loss, Pool, UpstreamConnection
from tests.pool.gateway.test_heads import Reader, Wire

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


class Relay(Reader):
    """What a client gets of an engine's stream. `takes`: by the shortcut where it may."""

    def __init__(self, *, takes: bool, hides_usage: bool) -> None:
        super().__init__()
        self.gate = EventGate(hides_usage=hides_usage)
        self.sent = b""
        self.taken_bytes = 0
        self._takes = takes

    def take(self, data: bytes) -> int:
        taken, piece = self.gate.take(data)
        self.taken_bytes += taken
        self.sent += piece
        return taken

    def on_response(self, connection: UpstreamConnection, body: bytes) -> None:
        piece = self.gate.feed(body) if body else b""
        self.complete = connection.complete
        if self.complete and not self.gate.failure:
            piece += self.gate.finish()
        self.sent += chunk(piece) if piece else b""
        connection.in_step = self if self._takes and self.gate.is_clear else None
        if self.complete or self.gate.failure:
            connection.release()

    def tell(self) -> Any:
        gate = self.gate
        if self.loss is not None or gate.failure:
            # Any part of what came before the break may have been passed on, and either may be seen first.
            return "broken"
        return dechunk(self.sent), gate.done, gate.chunks, gate.tail


def dechunk(sent: bytes) -> bytes:
    """As a client's parser reads it. Raises where the framing is wrong."""
    body = bytearray()

    class Client:
        def on_body(self, piece: bytes) -> None:
            body.extend(piece)

    parser = httptools.HttpResponseParser(Client())
    parser.feed_data(HEAD + sent + LAST_CHUNK)
    return bytes(body)


def relay(reads: tuple[bytes, ...], *, takes: bool, hides_usage: bool = False) -> Relay:
    HEADS.forget_all()
    for data in ((HEAD + LAST_CHUNK,), reads) if takes else (reads,):
        one, wire = Relay(takes=takes, hides_usage=hides_usage), Wire()
        connection = UpstreamConnection(Pool("unix:/nowhere", key="k"))
        connection.connection_made(cast(asyncio.Transport, wire))
        connection.send(one, b"POST / HTTP/1.1\r\n\r\n", b"")
        for piece in data:
            if not wire.closed:
                connection.data_received(piece)
        # What has not come by now never comes.
        connection.connection_lost(None)
    return one


def sized(size: bytes, data: bytes) -> bytes:
    return size + b"\r\n" + data + b"\r\n"


EVENTS = st.sampled_from(
    [
        TOKEN, TOKEN, TOKEN, USAGE, DONE, b": comment\n\n", b'data: {"error":{"message":"x"}}\n\n', b"data: {\n\n",
        b"data: {}\n\n", b'data: {"a":"\\n"}\n\n', b'data:{"a":1}\n\n',
        b'data: {"a":1}\ndata: {"b":2}\n\n', b'event: x\ndata: {"a":1}\n\n', b'data: {"a":1}\n', b'data: {"a":',
        b'data: {"usage":null}\n\n', TOKEN * 30,
    ]
)  # fmt: skip
FRAMED = st.one_of(
    EVENTS.map(chunk),
    EVENTS.map(chunk),
    st.lists(EVENTS, min_size=2, max_size=3).map(lambda events: chunk(b"".join(events))),
    EVENTS.flatmap(
        lambda event: st.integers(1, max(1, len(event) - 1)).map(
            lambda at: b"".join(chunk(part) for part in (event[:at], event[at:]) if part)
        )
    ),
    st.sampled_from(
        [
            sized(b"%x" % (len(TOKEN) + 1), TOKEN), sized(b"%x" % (len(TOKEN) - 1), TOKEN), sized(b"-1", TOKEN),
            sized(b"0%x" % len(TOKEN), TOKEN), sized(b"%x;a" % len(TOKEN), TOKEN), sized(b"", TOKEN),
            sized(b"%X" % len(TOKEN), TOKEN), sized(b"000000%x" % len(TOKEN), TOKEN), TOKEN,
            b"%x\n" % len(TOKEN) + TOKEN + b"\r\n", b"%x\r\n" % len(TOKEN) + TOKEN, LAST_CHUNK,
            sized(b"%x" % (len(TOKEN) + 5), TOKEN + b"\r\n0\r\n"), sized(b"fffff", TOKEN),
            sized(b"7fffffffffffffff", TOKEN),
        ]
    ),
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, ...]:
    message = (
        HEAD
        + b"".join(draw(st.lists(FRAMED, max_size=8)))
        + draw(st.sampled_from([LAST_CHUNK, LAST_CHUNK, b""]))
    )
    cuts = draw(st.lists(st.integers(len(HEAD), len(message)), max_size=6))
    edges = sorted({0, len(HEAD), len(message), *cuts})
    return tuple(message[start:end] for start, end in zip(edges, edges[1:], strict=False))


@settings(max_examples=600, deadline=None)
@given(streams(), st.booleans())
@example((HEAD, chunk(TOKEN), chunk(TOKEN) * 5 + chunk(USAGE), chunk(DONE) + LAST_CHUNK), True)
@example((HEAD, chunk(TOKEN), chunk(TOKEN) + sized(b"30;a", TOKEN), chunk(DONE) + LAST_CHUNK), False)
def test_a_stream_is_the_same_with_the_shortcut_as_without(
    reads: tuple[bytes, ...], hides_usage: bool
) -> None:
    short = relay(reads, takes=True, hides_usage=hides_usage)
    plain = relay(reads, takes=False, hides_usage=hides_usage)

    assert short.tell() == plain.tell()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 48, 49, 50, 51, 1000])
def test_a_usual_stream_is_the_same_however_it_is_cut(step: int) -> None:
    message = HEAD + chunk(TOKEN) * 40 + chunk(USAGE) + chunk(DONE) + LAST_CHUNK
    reads = (HEAD, *(message[at : at + step] for at in range(len(HEAD), len(message), step)))

    short = relay(reads, takes=True)

    assert short.tell() == relay(reads, takes=False).tell()
    assert short.gate.done
    assert (short.taken_bytes > 0) == (step == 1000)


def test_what_a_broken_engine_sends_is_not_held_without_end() -> None:
    body = ChunkedBody()

    for _ in range(100):
        body.feed(b"f" * 1000)

    assert body.unusual


def test_a_loss_is_told_once() -> None:
    one = relay((HEAD, chunk(TOKEN), b"rubbish\r\n"), takes=True)

    assert (one.loss, one.complete) == (Loss.NO_HTTP, False)
