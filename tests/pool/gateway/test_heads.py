"""The shortcut around the parser: what it reads, the parser reads the same."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pool.domain.routing_table import to_bytes
from pool.gateway.heads import Heads
from pool.gateway.plane import Plane
from pool.gateway.request import Request
from pool.gateway.response import ResponseHead
from pool.gateway.server import ClientConnection
from pool.gateway.upstream import HEADS, Loss, Pool, UpstreamConnection
from tests.pool.gateway.rig import CHAT, KEY, SECRET, Rig, make_release, make_table

LINE = f"POST {CHAT} HTTP/1.1\r\n".encode()
USUAL = f"host: x\r\nauthorization: Bearer {KEY}\r\n".encode()
BODY = b'{"model":"m"}'
DATE = b"date: Thu, 05 Nov 2026 09:00:00 GMT\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


@dataclass
class Wire:
    """A transport that keeps what is written."""

    written: bytearray = field(default_factory=bytearray)
    closed: bool = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close
    write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return True

    def get_extra_info(self, name: str) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Recorder(Plane):
    """Notes what would be served, and has answered it at once. `recalled`: how often the shortcut was taken."""

    is_plain = False
    recalled = 0

    def begin_anew(self) -> None:
        self._heads.forget_all()
        self.served: list[Any] = []

    def new_request_id(self) -> str:
        return "req"

    def recall(self, data: bytes, now_s: float) -> Request | None:
        found = None if self.is_plain else super().recall(data, now_s)
        self.recalled += found is not None
        return found

    def serve(self, client: ClientConnection, request: Request) -> None:
        headers = {name: value for name, value in request.headers.items() if name != b"content-length"}
        told = (request.method, request.target, request.version, request.caller, request.keep_alive)
        self.served.append((told, headers, bytes(request.body), request.body_bytes))
        client.finish(keep_alive=request.keep_alive)


def read_requests(plane: Recorder, *messages: bytes) -> Any:
    """Each on a connection of its own, in one read: what is served, what is said, and which ones end there."""
    plane.begin_anew()
    said = []
    for message in messages:
        wire = Wire()
        client = ClientConnection(plane)
        client.connection_made(cast(asyncio.Transport, wire))
        client.data_received(message)
        said.append((bytes(wire.written), wire.closed, client.is_idle))
        client.connection_lost(None)
    return plane.served, said


@pytest.fixture
async def planes(rig: Rig) -> AsyncIterator[tuple[Recorder, Recorder]]:
    """With the shortcut and without."""
    both = Recorder(rig.config), Recorder(rig.config)
    for plane in both:
        plane.routes.offer(to_bytes(make_table(make_release(1)), SECRET), now_s=0.0)
    both[1].is_plain = True
    yield both
    for plane in both:
        plane.readers.close()


LENGTHS = st.just(b"content-length: %d\r\n") | st.sampled_from(
    [
        b"content-length: %d\r\n", b"Content-Length: %d\r\n", b"CONTENT-LENGTH: %d\r\n", b"content-length:%d\r\n",
        b"content-length:  %d\r\n", b"content-length:\t%d\r\n", b"content-length: %d \r\n", b"content-length: 0%d\r\n",
        b"content-length: 000000000%d\r\n", b"content-length: +%d\r\n", b"content-length: -%d\r\n",
        b"content-length: %d, 13\r\n", b"content-length: %d\x00\r\n", b"content-length : %d\r\n",
        b"content-length: %d\n", b"content-length: %d\r\n 0\r\n", b"content-length: \r\n%d: a\r\n",
        b"content-length: 0x%d\r\n", b"content-length: %d;x\r\n", b"content-length: %d\rx: a\r\n",
        b"content-length: \xd9\xa1%d\r\n", b" content-length: %d\r\n", b"x: content-length: %d\r\n",
    ]
)  # fmt: skip
OTHERS = st.sampled_from(
    [
        DATE, DATE, b"date: Fri, 06 Nov 2026 10:00:00 GMT\r\n", b"Date: now\r\n", b"date: \r\n",
        b"date: x\ntransfer-encoding: chunked\r\n", b"date: x\rtransfer-encoding: chunked\r\n", b"date: \x00\r\n",
        b"date: x\r\n transfer-encoding: chunked\r\n", b"date: x\r\n\tfolded\r\n", b"date: \x7f\r\n", b"date: \xff\r\n",
        b"date: " + b"9" * 60 + b"\r\n", b"date : x\r\n", b"content-length: 13\r\n", b"Content-Length: 13\r\n",
        b"content-length: 3\r\n", CHUNKED, b"Transfer-Encoding: identity\r\n", b"connection: close\r\n",
        b"connection: keep-alive\r\n", b"upgrade: h2c\r\nconnection: upgrade\r\n", b"expect: 100-continue\r\n",
        b"x-sluice-session: a\r\n", b"x-sluice-release: 1\r\n", b"host: y\r\n", b"x: a\r\n",
    ]
)  # fmt: skip
BODIES = st.sampled_from(
    [BODY, BODY, BODY, b"", BODY[:-1], BODY + b"x", BODY + LINE, BODY + b"\r\n\r\n", b"0\r\n\r\n"]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """The usual one, or one that is near to it."""
    lines = [USUAL, *draw(st.lists(OTHERS, max_size=2))]
    length = draw(st.just(len(BODY)) | st.sampled_from([0, 3, 20]))
    lines.insert(draw(st.integers(0, len(lines))), draw(LENGTHS).replace(b"%d", b"%d" % length))
    return LINE + b"".join(lines) + b"\r\n" + draw(BODIES)


def usual_request(*lines: bytes, length: bytes = b"13") -> bytes:
    return LINE + USUAL + b"content-length: " + length + b"\r\n" + b"".join(lines) + b"\r\n" + BODY


async def test_requests_mean_the_same_with_the_shortcut_as_without(
    planes: tuple[Recorder, Recorder],
) -> None:
    short, plain = planes

    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(requests(), min_size=2, max_size=5), st.booleans())
    @example([usual_request(DATE), usual_request(b"date: x\ntransfer-encoding: chunked\r\n")], False)
    @example([usual_request(), usual_request(b"date: x\r\n folded\r\n")], False)
    @example([usual_request(), usual_request(length=b""), usual_request(length=b"0013")], False)
    def check(messages: list[bytes], is_first_usual: bool) -> None:
        if is_first_usual:
            messages.insert(0, usual_request())

        assert read_requests(short, *messages) == read_requests(plain, *messages)

    check()

    assert short.recalled > 10
    assert not plain.recalled


async def test_a_flipped_byte_means_the_same_with_the_shortcut_as_without(
    planes: tuple[Recorder, Recorder],
) -> None:
    short, plain = planes
    first = usual_request(DATE)

    for at in range(len(first)):
        for byte in (0, 9, 10, 13, 32, 48, 58, 255, first[at] ^ 32):
            second = first[:at] + bytes((byte,)) + first[at + 1 :]
            assert read_requests(short, first, second) == read_requests(plain, first, second)


async def test_a_repeated_head_is_recalled_whatever_its_date_and_length(
    planes: tuple[Recorder, Recorder],
) -> None:
    short, _ = planes

    served, _ = read_requests(
        short,
        LINE + USUAL + DATE + b"content-length: 2\r\n\r\n{}",
        LINE + USUAL + DATE.replace(b"09", b"10") + b"content-length: 12\r\n\r\n" + b" " * 12,
        LINE + USUAL + b"content-length: 1\r\n\r\n{",
    )

    assert [one[2] for one in served] == [b"{}", b" " * 12, b"{"]
    assert short.recalled == 2


async def test_a_revoked_key_is_not_recalled(planes: tuple[Recorder, Recorder]) -> None:
    short, _ = planes
    read_requests(short, usual_request())

    short.routes.offer(to_bytes(make_table(make_release(1), keys=(), version=2), SECRET), now_s=0.0)

    assert short.recall(usual_request(), 0.0) is None


# The other side: what engines answer.
class Reader:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.complete = False
        self.loss: Loss | None = None

    def on_connected(self, connection: UpstreamConnection) -> None: ...

    def on_connect_failed(self, *, timed_out: bool) -> None: ...

    def on_response(self, connection: UpstreamConnection, body: bytes) -> None:
        self.head = connection.head
        self.body += body
        if connection.complete:
            self.complete = True
            connection.release()

    def on_lost(self, connection: UpstreamConnection, loss: Loss) -> None:
        self.loss = loss

    def tell(self) -> Any:
        head = self.head
        if self.loss is not None:
            # It may have been passed on up to any point before the break.
            return None, b"", False, self.loss
        told = None if head is None else (head.status, head.lines, head.is_stream)
        # Of a chunk that has not ended either all may be held or nothing.
        return told, self.body if self.complete else b"", self.complete, None


def read_answers(*answers: tuple[bytes, ...], is_plain: bool = False) -> Any:
    """Each as an answer on a connection of its own, in these reads."""
    HEADS.forget_all()
    told = []
    for reads in answers:
        if is_plain:
            HEADS.forget_all()
        pool, reader, wire = Pool("unix:/nowhere", key="k"), Reader(), Wire()
        connection = UpstreamConnection(pool)
        connection.connection_made(cast(asyncio.Transport, wire))
        connection.send(reader, b"POST / HTTP/1.1\r\n\r\n", b"")
        for data in reads:
            if not wire.closed:
                connection.data_received(data)
        told.append((*reader.tell(), pool.idle_count))
    return told


KIND = b"content-type: text/event-stream\r\n"
EVENT = b'data: {"choices":[]}\n\n'
ANSWER_HEADS = st.sampled_from(
    [
        OK + KIND + CHUNKED, OK + KIND + CHUNKED, OK + DATE + KIND + CHUNKED, OK + KIND + CHUNKED + DATE,
        OK + KIND + b"content-length: \r\n", OK + KIND + b"content-length: 5\r\n",
        OK + KIND + b"Content-Length: 5\r\n", OK + KIND + b"content-length: 5\r\n" + CHUNKED,
        OK + KIND + CHUNKED + b"connection: close\r\n", OK + KIND + CHUNKED + b"trailer: x\r\n",
        OK + KIND + CHUNKED + b"date: x\ncontent-length: 5\r\n", OK + KIND + CHUNKED + b"date: x\r\n fold\r\n",
        OK + KIND + CHUNKED + CHUNKED, OK + KIND + b"transfer-encoding: gzip, chunked\r\n",
        b"HTTP/1.0 200 OK\r\n" + KIND + CHUNKED, b"HTTP/1.1 204 No\r\ncontent-length: 0\r\n",
        b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n", b"HTTP/1.1 304 No\r\ncontent-length: 5\r\n",
        b"HTTP/1.1 304 No\r\ncontent-length: 0\r\n", b"HTTP/1.1 500 No\r\ncontent-length: 5\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + KIND + CHUNKED,
        b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + OK + KIND + b"content-length: 5\r\n",
        b"HTTP/1.1 103 Hints\r\ncontent-length: 5\r\n", b"HTTP/1.1 103 Hints\r\nlink: x\r\n",
        b"\r\n" + OK + KIND + b"content-length: 5\r\n",
    ]
)  # fmt: skip


def chunk(data: bytes, size: bytes | None = None) -> bytes:
    return (b"%x" % len(data) if size is None else size) + b"\r\n" + data + b"\r\n"


CHUNKS = st.sampled_from(
    [
        chunk(EVENT), chunk(EVENT), chunk(b"x"), chunk(EVENT * 40), chunk(b"x" * 5000, b"01388"),
        chunk(EVENT, b"000016"), chunk(EVENT, b"0000000000000016"), chunk(EVENT, b"16;a=b"), chunk(EVENT, b"16 "),
        chunk(EVENT, b" 16"), chunk(EVENT, b"+16"), chunk(EVENT, b"-16"), chunk(EVENT, b"0x16"), chunk(EVENT, b""),
        chunk(EVENT, b"15"), chunk(EVENT, b"17"), chunk(EVENT, b"1_6"), chunk(EVENT, b"FFFFFFFFFFFFFFFFF"),
        chunk(b"y" * 0xAB, b"Ab"), b"16\n" + EVENT + b"\r\n", b"16\r\n" + EVENT + b"\n", b"16\r" + EVENT + b"\r\n",
        b"\r\n", b"0\r\n", chunk(b"0\r\n\r\n"), chunk(EVENT, b"\xb2"), chunk(b"z" * 70_000),
    ]
)  # fmt: skip
LAST = st.sampled_from(
    [
        b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\n\r\n", b"000\r\n\r\n", b"0\r\nx: trailer\r\n\r\n", b"0;a=b\r\n\r\n",
        b"0\r\n", b"0\r\n\r", b"", b"0\r\n\r\n" + OK, b"0\r\n\r\n" + OK + b"content-length: 3\r\n\r\nabc",
        b"0\r\n\r\nrubbish", b"0\n\n",
    ]
)  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, ...]:
    head = draw(ANSWER_HEADS) + b"\r\n"
    if CHUNKED in head:
        body = b"".join(draw(st.lists(CHUNKS, max_size=5))) + draw(LAST)
    else:
        body = draw(st.sampled_from([b"hello", b"hello", b"hell", b"", b"hello" + OK, chunk(b"hi")]))
    message = head + body
    cuts = draw(st.lists(st.integers(0, len(message)), max_size=4))
    edges = sorted({0, len(head), len(message), *cuts} if draw(st.booleans()) else {0, len(message), *cuts})
    return tuple(message[start:end] for start, end in zip(edges, edges[1:], strict=False))


PLAIN_STREAM = (OK + KIND + CHUNKED + b"\r\n" + chunk(EVENT) + b"0\r\n\r\n",)
PLAIN_ANSWER = (OK + KIND + b"content-length: 5\r\n\r\nhello",)


@settings(max_examples=400, deadline=None)
@given(st.lists(answers(), min_size=1, max_size=4))
@example([(OK + KIND + b"content-length: \r\n\r\n" + chunk(EVENT) + b"0\r\n\r\n",)])
def test_answers_mean_the_same_with_the_shortcut_as_without(drawn: list[tuple[bytes, ...]]) -> None:
    shown = [PLAIN_STREAM, PLAIN_ANSWER, *drawn]

    assert read_answers(*shown) == read_answers(*shown, is_plain=True)


def test_a_second_answer_to_one_request_is_not_mixed_into_the_first() -> None:
    second = b"HTTP/1.1 500 No\r\ncontent-length: 3\r\n\r\nbad"

    for reads in ((PLAIN_ANSWER[0] + second,), (PLAIN_STREAM[0] + second,)):
        ((head, body, complete, loss, idle),) = read_answers(reads)

        assert (head[0], complete, loss, idle) == (200, True, None, 0)
        assert body in (b"hello", EVENT)


def test_what_is_remembered_is_bounded() -> None:
    heads: Heads[int] = Heads()

    for number in range(3000):
        heads.remember(b"GET /%d HTTP/1.1\r\ncontent-length: 0\r\n\r\n" % number, number)
        heads.remember_stream(b"HTTP/1.1 %d OK\r\n\r\n" % number, number)
        heads.find(b"GET / HTTP/1.1\r\ndate: %d\r\ncontent-length: 0\r\n\r\n" % number)

    assert len(heads) <= 2048
