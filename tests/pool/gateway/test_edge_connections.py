"""What clients do to a connection: offers, expectations, pipelines, half-closes, silence; and nothing is left of it."""

import asyncio
import socket
from typing import Any

import pytest

from tests.pool.gateway.leaks import wait_for_rest
from tests.pool.gateway.rig import CHAT, KEY, Rig, chat_request, make_release, make_table
from tests.pool.gateway.tables import keep_alive

AUTH = f"host: x\r\nauthorization: Bearer {KEY}\r\n".encode()
HEAD = f"POST {CHAT} HTTP/1.1\r\n".encode() + AUTH
H2C = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AA"}
MODELS = b"GET /v1/models HTTP/1.1\r\n" + AUTH + b"\r\n"


async def serve(rig: Rig, *, config: dict[str, Any] | None = None, **switches: Any) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(**switches))), **(config or {}))


async def connect_deaf(rig: Rig) -> socket.socket:
    """A client that takes in next to nothing, with little room in the kernel on the way."""
    assert rig.gateway._listener is not None
    rig.gateway._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", rig.gateway.port))
    return client


@pytest.mark.parametrize(
    ("line", "status", "also"),
    [
        (b"CONNECT example.org:443 HTTP/1.1\r\n", 404, False),
        (b"CONNECT /v1/chat/completions HTTP/1.1\r\n", 405, False),
        (b"OPTIONS * HTTP/1.1\r\n", 404, True),
        (b"OPTIONS /v1/chat/completions HTTP/1.1\r\n", 405, True),
        (b"TRACE /v1/chat/completions HTTP/1.1\r\n", 405, True),
        (b"HEAD /v1/models HTTP/1.1\r\n", 405, True),
        (b"GET /v1/chat/completions HTTP/1.1\r\n", 405, True),
        (b"POST http://other/v1/chat/completions HTTP/1.1\r\n", 404, True),
        (b"POST //v1/chat/completions HTTP/1.1\r\n", 404, True),
        (b"POST /v1/../v1/chat/completions HTTP/1.1\r\n", 404, True),
        (b"POST /v1/chat%2fcompletions HTTP/1.1\r\n", 404, True),
        (b"POST /v1/chat/completions#x HTTP/1.1\r\n", 404, True),
        (b"POST /metrics HTTP/1.1\r\n", 405, True),
        (b"GET /v1/models HTTP/1.1\r\ncontent-length: 5\r\n", 200, True),
    ],
)
async def test_other_forms_and_methods_get_one_answer(rig: Rig, line: bytes, status: int, also: bool) -> None:
    """`also`: the connection lives on."""
    await serve(rig)
    connection = await rig.connect()

    connection.send(line + AUTH + b"\r\n" + (b"hello" if b"length" in line else b""))
    if also:
        connection.send(chat_request(prompt="marker"))
        answers = [await connection.read_response() for _ in range(2)] if b"HEAD" not in line else []
        assert [answer.status for answer in answers] in ([status, 200], [])
    raw = bytes(connection.raw) or await connection.read_until(b"\r\n\r\n")

    assert raw.startswith(b"HTTP/1.1 %d " % status)
    await wait_for_rest(rig)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("pieces", [1, 11, 10_000])
async def test_a_request_that_offers_http_2_is_read_as_any_other(
    rig: Rig, chunked: bool, pieces: int
) -> None:
    """As Java's client and `curl --http2` send it; their bodies come with the offer."""
    await serve(rig)
    connection = await rig.connect()
    offers = [chat_request(headers=H2C, stream=stream, chunked=chunked) for stream in (True, False)]
    sent = (
        offers[0] + chat_request() + offers[1] + chat_request(headers={**H2C, "connection": "Upgrade, close"})
    )

    for at in range(0, len(sent), pieces):
        connection.send(sent[at : at + pieces])
    answers = [await connection.read_response() for _ in range(4)]
    await connection.read_to_end()

    assert [answer.status for answer in answers] == [200] * 4
    assert [answer.headers.get("connection") for answer in answers] == [None, None, None, "close"]
    assert answers[0].events[-1] == "[DONE]"
    await wait_for_rest(rig)


async def test_a_long_pipeline_of_offers_needs_no_deep_stack(rig: Rig) -> None:
    await serve(rig)
    connection = await rig.connect()
    offer = MODELS[:-2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"

    connection.send(offer * 3000)

    assert {(await connection.read_response()).status for _ in range(3000)} == {200}


async def test_an_offer_with_a_refused_body_does_not_let_it_pass_for_a_request(rig: Rig) -> None:
    await serve(rig)
    connection = await rig.connect()
    smuggled = chat_request(prompt="smuggled")

    connection.send(chat_request(smuggled, key="sk-wrong", headers=H2C) + chat_request(prompt="marker"))

    assert [(await connection.read_response()).status for _ in range(2)] == [401, 200]
    assert b"marker" in rig.engines["r1"].calls[0].body


async def test_rubbish_behind_a_request_does_not_cut_its_stream(rig: Rig) -> None:
    await serve(rig, config={"header_timeout_s": 0.05, "body_timeout_s": 0.05}, gap_s=0.05, chunks=12)
    connection = await rig.connect()

    connection.send(chat_request(stream=True) + b"\x00rubbish")
    answers = [await connection.read_response() for _ in range(2)]

    assert answers[0].events[-1] == "[DONE]"
    assert answers[1].status == 400
    await wait_for_rest(rig)


# Expectations.
async def test_http_1_0_gets_no_interim_answer(rig: Rig) -> None:
    await serve(rig)
    connection = await rig.connect()
    head, _, body = chat_request(headers={"expect": "100-continue"}).partition(b"\r\n\r\n")

    connection.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n\r\n")
    await asyncio.sleep(0.05)
    connection.send(body)

    assert (await connection.read_to_end()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("value", ["100-Continue", "100-continue, x", "200-ok", "", "100"])
async def test_other_expectations_are_met_or_left_alone(rig: Rig, value: str) -> None:
    await serve(rig)
    connection = await rig.connect()

    connection.send(chat_request(headers={"expect": value}) + chat_request())

    assert [(await connection.read_response()).status for _ in range(2)] == [200, 200]


async def test_who_expects_continue_behind_another_request_gets_it_in_turn(rig: Rig) -> None:
    await serve(rig, gap_s=0.01)
    connection = await rig.connect()
    head, _, body = chat_request(headers={"expect": "100-continue"}).partition(b"\r\n\r\n")

    connection.send(chat_request() + head + b"\r\n\r\n")
    raw = await connection.read_until(b"100 Continue\r\n\r\n")
    connection.send(body)

    assert raw.index(b"HTTP/1.1 200 ") < raw.index(b"HTTP/1.1 100 ")
    assert [(await connection.read_response()).status for _ in range(2)] == [200, 200]


async def test_time_for_a_request_begins_when_its_turn_has_come(rig: Rig) -> None:
    limits = {"header_timeout_s": 0.2, "body_timeout_s": 0.2}
    await serve(rig, config=limits, gap_s=0.1, chunks=5)
    connection = await rig.connect()
    request = chat_request(prompt="second")

    connection.send(chat_request() + request[:-5])
    assert (await connection.read_response()).status == 200
    connection.send(request[-5:])
    assert (await connection.read_response()).status == 200
    connection.send(chat_request() + request[:20])
    assert (await connection.read_response()).status == 200
    assert (await connection.read_response()).status == 408


# Pipelines.
async def test_a_deep_pipeline_of_all_kinds_is_answered_in_order(rig: Rig) -> None:
    await serve(rig)
    connection = await rig.connect()
    kinds = [
        (chat_request(), 200),
        (chat_request(stream=True), 200),
        (chat_request(key="sk-wrong"), 401),
        (chat_request(b"{"), 400),
        (MODELS, 200),
        (chat_request(chunked=True), 200),
        (b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n", 404),
    ]

    connection.send(b"".join(kinds[turn % len(kinds)][0] for turn in range(700)))
    statuses = [(await connection.read_response()).status for _ in range(700)]

    assert statuses == [kinds[turn % len(kinds)][1] for turn in range(700)]
    await wait_for_rest(rig)


async def test_large_bodies_that_wait_their_turn_are_left_to_the_kernel(rig: Rig) -> None:
    await serve(rig, gap_s=0.02, max_ctx=1 << 30)
    connection = await rig.connect()
    large = chat_request(prompt="x" * 700_000)

    connection.send(chat_request(chunks=10) + large * 12)
    await rig.until(lambda: any(not one.transport.is_reading() for one in rig.gateway.plane.clients))
    (client,) = rig.gateway.plane.clients
    waiting = sum(request.body_bytes for request in client._queue)
    answers = [await connection.read_response() for _ in range(13)]

    assert waiting < 3 << 20
    # Their prompts are too long for the model: that is found out one after the other.
    assert [answer.status for answer in answers] == [200] + [400] * 12


async def test_trailers_without_an_end_are_refused(rig: Rig) -> None:
    await serve(rig, config={"max_header_bytes": 1024})
    connection = await rig.connect()

    connection.send(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: " + b"y" * 10_000)

    assert (await connection.read_response()).status == 413
    await wait_for_rest(rig)


# Ends.
STAGES = {
    "before the first byte": (b"", False),
    "in the head": (HEAD[:40], False),
    "after the head": (HEAD + b"content-length: 9\r\n\r\n", False),
    "in the body": (chat_request()[:-5], False),
    "in a chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhel", False),
    "while an answer is made": (chat_request(), True),
    "while a stream is made": (chat_request(stream=True), True),
    "in a pipeline": (chat_request(stream=True) * 3 + chat_request()[:50], True),
    "while a large body is read": (chat_request(prompt="x" * 200_000), False),
    "after rubbish": (b"rubbish\r\n\r\n", False),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["half", "close", "reset"])
async def test_fc07_a_client_that_goes_takes_everything_along(rig: Rig, stage: str, how: str) -> None:
    sent, is_asked = STAGES[stage]
    await serve(rig, gap_s=0.05, chunks=100, max_ctx=1 << 30)
    connection = await rig.connect()
    engine = rig.engines["r1"]

    connection.send(sent)
    if is_asked:
        await rig.until(lambda: engine.running)
    elif sent:
        await rig.until(lambda: rig.gateway.plane.clients)
        await asyncio.sleep(0.02)
    {"half": connection.writer.write_eof, "close": connection.close, "reset": connection.abort}[how]()

    await rig.until(lambda: not rig.gateway.plane.clients)
    await wait_for_rest(rig)
    assert all(call.aborted for call in engine.calls)


@pytest.mark.parametrize("events", range(8))
async def test_fc07_a_client_that_goes_at_any_event_frees_the_engine(rig: Rig, events: int) -> None:
    await serve(rig, gap_s=0.005, chunks=1000)
    connection = await rig.connect()

    connection.send(chat_request(stream=True))
    await connection.read_until(b"data:")
    while connection.raw.count(b"data:") < events:
        await connection._read_some()
    connection.abort()

    await wait_for_rest(rig)
    assert rig.engines["r1"].calls[0].aborted


async def test_fc07_a_client_that_goes_between_comments_frees_the_engine(rig: Rig) -> None:
    table = make_table(make_release(1, await rig.start_engine(first_s=30.0)))
    await rig.serve(keep_alive(table, 0.02))
    connection = await rig.connect()

    connection.send(chat_request(stream=True))
    await connection.read_until(b": keep-alive")
    connection.abort()

    await wait_for_rest(rig)


# Slow readers.
async def test_fc24_a_client_that_never_reads_its_answer_is_let_go(rig: Rig) -> None:
    """The answer is small enough to wait in the gateway, so that no pause tells of it."""
    limits = {"idle_timeout_s": 0.1, "write_timeout_s": 0.1}
    await serve(rig, config=limits, text="w" * 200_000)
    clients = [await connect_deaf(rig) for _ in range(20)]
    loop = asyncio.get_running_loop()

    for turn, client in enumerate(clients):
        await loop.sock_sendall(client, chat_request(prompt=f"p{turn}"))
    await rig.until(lambda: len(rig.engines["r1"].calls) == 20)

    await rig.until(lambda: not rig.gateway.plane.clients, within_s=5)
    await wait_for_rest(rig)
    for client in clients:
        client.close()


async def test_fc24_slow_readers_hold_a_bounded_part_of_their_streams(rig: Rig) -> None:
    """Each stream would be 20 MB."""
    await serve(rig, text="w" * 20_000, chunks=1000)
    clients = [await connect_deaf(rig) for _ in range(10)]
    loop = asyncio.get_running_loop()

    for client in clients:
        await loop.sock_sendall(client, chat_request(stream=True))
    await rig.until(lambda: len([one for one in rig.gateway.plane.clients if one._slow]) == 10)
    await asyncio.sleep(0.3)
    held = [client.transport.get_write_buffer_size() for client in rig.gateway.plane.clients]
    sent = [len(call.response) for call in rig.engines["r1"].calls]

    assert max(held) < 600_000
    # What the engine could write is in the kernel's buffers on the way.
    assert max(sent) < 10_000_000
    for client in clients:
        client.close()
    await wait_for_rest(rig)


async def test_fc25_a_connection_whose_last_client_was_slow_reads_for_the_next(rig: Rig) -> None:
    """The last read of an answer filled the client's buffer: the engine's connection must not stay paused."""
    await serve(rig, text="w" * 400_000)
    client = await connect_deaf(rig)

    await asyncio.get_running_loop().sock_sendall(client, chat_request())
    await rig.until(lambda: any(one._slow for one in rig.gateway.plane.clients))
    pool = rig.replica().pool
    while not pool.idle_count:
        try:
            assert client.recv(1024)
        except BlockingIOError:
            await asyncio.sleep(0.001)
    await rig.until(lambda: pool.idle_count == 1)
    rig.engines["r1"].switches.text = "short"
    answer = await rig.ask()

    assert answer.status == 200
    assert rig.engines["r1"].connections_made == 1
    client.close()
    await wait_for_rest(rig)
