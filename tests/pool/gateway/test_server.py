"""HTTP itself: framing, limits, time-outs, keep-alive, pipelining."""

import asyncio
import json

import pytest

from tests.pool.gateway.rig import CHAT, KEY, Rig, chat_request, make_release, make_table

HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n".encode()


@pytest.fixture
async def served(rig: Rig) -> Rig:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    return rig


async def test_one_connection_carries_many_requests(served: Rig) -> None:
    connection = await served.connect()

    for stream in (False, True, False, True):
        connection.send(chat_request(stream=stream))
        assert (await connection.read_response()).status == 200

    assert len(served.gateway.plane.clients) == 1


async def test_pipelined_requests_are_answered_in_order(served: Rig) -> None:
    served.engines["r1"].switches.gap_s = 0.002
    connection = await served.connect()

    connection.send(b"".join(chat_request(prompt=f"p{turn}", stream=turn % 2 == 0) for turn in range(40)))
    answers = [await connection.read_response() for _ in range(40)]

    prompts = [json.loads(call.body)["messages"][0]["content"] for call in served.engines["r1"].calls]
    assert prompts == [f"p{turn}" for turn in range(40)]
    assert [answer.status for answer in answers] == [200] * 40
    assert served.engines["r1"].connections_made == 1


async def test_a_refused_request_does_not_disturb_its_neighbours(served: Rig) -> None:
    connection = await served.connect()

    connection.send(chat_request() + chat_request(key="sk-wrong") + chat_request())

    assert [(await connection.read_response()).status for _ in range(3)] == [200, 401, 200]


async def test_connection_close_is_honoured(served: Rig) -> None:
    connection = await served.connect()

    connection.send(chat_request(headers={"connection": "close"}))
    raw = await connection.read_to_end()

    assert b"connection: close\r\n" in raw


async def test_a_client_that_expects_continue_gets_it_before_it_sends(served: Rig) -> None:
    connection = await served.connect()
    head, _, body = chat_request(headers={"expect": "100-continue"}).partition(b"\r\n\r\n")

    connection.send(head + b"\r\n\r\n")
    await connection.read_until(b"100 Continue\r\n\r\n")
    connection.send(body)

    assert (await connection.read_response()).status == 200


async def test_a_client_that_expects_continue_is_refused_before_it_sends(served: Rig) -> None:
    connection = await served.connect()
    head = chat_request(key="sk-wrong", headers={"expect": "100-continue"}).partition(b"\r\n\r\n")[0]

    connection.send(head + b"\r\n\r\n")
    raw = await connection.read_to_end()

    assert raw.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /",
        HEAD + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd",
        HEAD + b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
        HEAD + b"content-length: +4\r\n\r\nabcd",
        HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: identity\r\n\r\n",
        HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD.replace(b"1.1", b"3.0") + b"\r\n",
        HEAD + b"x: a\r\n folded\r\n\r\n",
        HEAD + b"x: a\nb: c\r\n\r\n",
        HEAD + b"host: twice\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n4\nabcd\r\n0\r\n\r\n",
        HEAD.replace(b"host: x\r\n", b"") + b"content-length: 0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /v1/models HTTP/1.1\r\nhost: a\x00b\r\n\r\n",
    ],
)
async def test_requests_that_two_parsers_could_read_differently_are_refused(
    served: Rig, request_bytes: bytes
) -> None:
    connection = await served.connect()

    connection.send(request_bytes)
    raw = await connection.read_to_end()

    assert raw.startswith(b"HTTP/1.1 400 ")
    assert raw.count(b"x-request-id") == 1
    assert not served.engines["r1"].calls


async def test_what_follows_a_malformed_request_is_not_read(served: Rig) -> None:
    connection = await served.connect()

    connection.send(chat_request() + b"rubbish\r\n\r\n" + chat_request())
    raw = await connection.read_to_end()

    assert raw.count(b"HTTP/1.1 200 ") == 1
    assert raw.count(b"HTTP/1.1 400 ") == 1


async def test_an_offer_of_http_2_is_declined_by_an_answer(served: Rig) -> None:
    connection = await served.connect()

    connection.send(
        f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n\r\n".encode()
    )
    answer = await connection.read_response()
    connection.send(chat_request())

    assert answer.status == 200
    assert "upgrade" not in answer.headers
    assert (await connection.read_response()).status == 200


async def test_headers_over_the_limit_are_refused(rig: Rig) -> None:
    await rig.serve(None, max_header_bytes=1024)
    whole = await rig.connect()
    whole.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 2000 + b"\r\n\r\n")
    endless = await rig.connect()
    endless.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 2000)

    for connection in (whole, endless):
        assert (await connection.read_response()).status == 431


@pytest.mark.parametrize("chunked", [False, True])
async def test_fc38_a_body_over_the_limit_is_refused_before_it_is_parsed(rig: Rig, chunked: bool) -> None:
    await rig.serve(
        make_table(make_release(1, await rig.start_engine())), max_body_bytes=10_000, max_header_bytes=1000
    )

    answer = await rig.ask(b"{" * 30_000, chunked=chunked)

    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert not rig.engines["r1"].calls


async def test_fc38_a_client_that_goes_on_sending_can_still_read_the_refusal(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())), max_body_bytes=10_000)
    connection = await rig.connect()

    connection.send(chat_request(b"x" * 3_000_000))
    answer = await connection.read_response()

    assert answer.status == 413
    await connection.read_to_end()


async def test_chunk_framing_counts_too(rig: Rig) -> None:
    await rig.serve(
        make_table(make_release(1, await rig.start_engine())), max_body_bytes=1024, max_header_bytes=512
    )
    connection = await rig.connect()

    piece = b"1;" + b"e" * 400 + b"\r\nx\r\n"
    connection.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + piece * 100)

    assert (await connection.read_response()).status == 413


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/chat", HEAD + b"content-length: 100\r\n\r\n", HEAD + b"content-length: 100\r\n\r\nabc"],
)
async def test_a_client_that_does_not_finish_its_request_is_let_go(served: Rig, sent: bytes) -> None:
    await served.serve(None, header_timeout_s=0.05, body_timeout_s=0.05)
    served.apply(make_table(make_release(1)))
    connection = await served.connect()

    connection.send(sent)
    raw = await connection.read_to_end()

    assert raw.startswith(b"HTTP/1.1 408 ") == bool(sent)


async def test_a_body_that_trickles_in_has_an_end(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1)), body_timeout_s=0.04)
    connection = await rig.connect()
    connection.send(HEAD + b"content-length: 1000\r\n\r\n")

    async def trickle() -> None:
        while not connection.raw:
            connection.send(b"x")
            await asyncio.sleep(0.01)

    task = asyncio.create_task(trickle())
    answer = await connection.read_response()
    task.cancel()

    assert answer.status == 408


async def test_an_idle_connection_is_closed_without_a_word(rig: Rig) -> None:
    await rig.serve(None, idle_timeout_s=0.05)
    connection = await rig.connect()

    connection.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    raw = await connection.read_to_end()

    assert raw.count(b"HTTP/1.1") == 1


async def test_a_long_answer_outlives_the_clients_idle_time(served: Rig) -> None:
    await served.serve(None, idle_timeout_s=0.05, header_timeout_s=0.05)
    served.apply(make_table(make_release(1, await served.start_engine("r2", gap_s=0.03, chunks=8))))

    answer = await served.ask()

    assert answer.status == 200


async def test_fc38_a_huge_body_does_not_hold_up_other_streams(rig: Rig) -> None:
    replica = await rig.start_engine(gap_s=0.01, chunks=60, max_ctx=1 << 30)
    await rig.serve(make_table(make_release(1, replica)))
    loop = asyncio.get_running_loop()
    connection = await rig.connect()
    connection.send(chat_request(stream=True))
    messages = [{"role": "user", "content": "x" * 50}] * 80_000
    big = chat_request(json.dumps({"model": "nope", "messages": messages}).encode())
    gaps = []

    await connection.read_until(b"data:")
    other = await rig.connect()
    other.send(big)
    last_s = loop.time()
    while not connection.raw.endswith(b"0\r\n\r\n"):
        await connection._read_some()
        gaps.append(loop.time() - last_s)
        last_s = loop.time()

    assert (await other.read_response()).status == 404
    assert max(gaps) < 0.5
