"""Plain and streamed answers from engine to client."""

import asyncio
import json

import pytest

from pool.gateway.usage import read_usage
from tests.pool.gateway.rig import CHAT, Rig, chat_body, chat_request, make_release, make_table


async def test_a_plain_answer_comes_byte_for_byte(rig: Rig) -> None:
    await rig.serve(make_table(make_release(3, await rig.start_engine())))

    answer = await rig.ask()

    call = rig.engines["r1"].completions[0]
    assert answer.status == 200
    assert answer.body == bytes(call.response)
    assert json.loads(call.body) == chat_body()


async def test_answers_name_release_replica_lane_and_request(rig: Rig) -> None:
    await rig.serve(make_table(make_release(3, await rig.start_engine())))

    answer = await rig.ask(headers={"x-request-id": "mine"})

    assert answer.headers["x-sluice-release"] == "3"
    assert answer.headers["x-sluice-replica"] == "r1"
    assert answer.headers["x-sluice-lane"] == "default"
    assert answer.headers["x-request-id"] != "mine"
    assert rig.engines["r1"].calls[0].headers["x-request-id"] == answer.headers["x-request-id"]


async def test_the_body_is_not_rewritten_on_its_way_to_the_engine(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    body = b'{ "model":"m",\n "messages": [{"role":"user", "content":"\xc3\xa4"}], "x": 1.50 }'

    await rig.ask(body)

    assert rig.engines["r1"].calls[0].body == body


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_stream_comes_byte_for_byte(rig: Rig, tcp: bool) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(tcp=tcp, chunks=64))))

    answer = await rig.ask(stream=True, stream_options={"include_usage": True})

    assert answer.body == bytes(rig.engines["r1"].calls[0].response)
    assert answer.events[-1] == "[DONE]"
    assert answer.complete


async def test_fc35_bytes_are_the_same_wherever_the_engine_cuts(rig: Rig) -> None:
    text = "你好🌍👩‍👩‍👧ü"
    await rig.serve(make_table(make_release(1, await rig.start_engine(text=text))))
    engine = rig.engines["r1"]
    connection = await rig.connect()
    wish = chat_request(stream=True, stream_options={"include_usage": True})
    connection.send(wish)
    whole = (await connection.read_response()).body

    for offset in range(1, len(whole)):
        engine.switches.cut = (offset,)
        connection.send(wish)
        answer = await connection.read_response()
        assert answer.body == bytes(engine.calls[-1].response), offset
        assert answer.text == text + " "


async def test_a_plain_answer_in_pieces_comes_whole(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(cut=(1, 5, 40)))))

    answer = await rig.ask()

    assert answer.body == bytes(rig.engines["r1"].calls[0].response)


async def test_a_large_plain_answer_flows_before_it_is_complete(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(text="x" * 3_000_000))))

    answer = await rig.ask()

    assert answer.complete
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.body == bytes(rig.engines["r1"].calls[0].response)


async def test_connections_to_an_engine_are_used_again(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    for _ in range(5):
        await rig.ask()
        await rig.ask(stream=True)

    assert rig.engines["r1"].connections_made == 1
    assert rig.replica().pool.idle_count == 1


async def test_the_engines_refusal_of_a_request_is_passed_on(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(max_ctx=10))))

    answer = await rig.ask(prompt="far too long " * 20, stream=True)

    assert answer.status == 400
    assert answer.body == bytes(rig.engines["r1"].calls[0].response)
    assert "maximum context length" in answer.error["message"]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_the_engines_own_errors_are_passed_on(rig: Rig, status: int) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(err=status))))

    answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (status, status)


async def test_fc20_a_wrong_engine_key_is_no_fault_of_the_client(rig: Rig) -> None:
    replica = await rig.start_engine()
    rig.engines["r1"].key = "another"
    await rig.serve(make_table(make_release(1, replica)))

    answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")


async def test_fc20_no_key_of_an_engine_is_in_any_answer(rig: Rig) -> None:
    replica = await rig.start_engine()
    await rig.serve(make_table(make_release(1, replica)))
    engine = rig.engines["r1"]
    seen = b""

    for switch in ({}, {"err": 500}, {"err": None, "close_at": 2}, {"close_at": None, "bad_json_at": 2}):
        for name, value in switch.items():
            setattr(engine.switches, name, value)
        connection = await rig.connect()
        connection.send(chat_request(stream=True, headers={"connection": "close"}))
        seen += await connection.read_to_end()
    await engine.stop()
    seen += (await rig.ask()).body

    assert engine.key.encode() not in seen
    assert b".sock" not in seen


async def test_a_request_in_single_byte_chunks_arrives_whole(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    answer = await rig.ask(chunked=True)

    assert answer.status == 200
    assert json.loads(rig.engines["r1"].calls[0].body) == chat_body()


async def test_responses_are_never_stored(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    answer = await rig.ask({"model": "m", "input": "hello", "store": True}, path="/v1/responses")

    assert answer.status == 200
    assert json.loads(rig.engines["r1"].calls[0].body) == {"model": "m", "input": "hello", "store": False}


async def test_a_response_cannot_be_continued(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    answer = await rig.ask({"model": "m", "input": "x", "previous_response_id": "r"}, path="/v1/responses")

    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert not rig.engines["r1"].calls


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_the_other_endpoints_are_relayed_too(rig: Rig, path: str) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    answer = await rig.ask({"model": "m", "prompt": "hello", "input": "hello"}, path=path)

    assert answer.status == 200
    assert rig.engines["r1"].calls[0].path == path


async def test_a_query_string_does_not_reach_the_engine(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    answer = await rig.ask(path=f"{CHAT}?api-version=1")

    assert answer.status == 200
    assert rig.engines["r1"].calls[0].path == CHAT


async def test_http_1_0_gets_a_stream_without_chunks(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    connection = await rig.connect()

    wish = chat_request(stream=True, stream_options={"include_usage": True})
    connection.send(wish.replace(b"HTTP/1.1", b"HTTP/1.0"))
    raw = await connection.read_to_end()

    assert raw.partition(b"\r\n\r\n")[2] == bytes(rig.engines["r1"].calls[0].response)
    assert b"connection: close" in raw


async def test_a_slow_reader_holds_up_the_engine_and_not_the_memory(rig: Rig) -> None:
    replica = await rig.start_engine(text="x" * 20_000, chunks=800)
    await rig.serve(make_table(make_release(1, replica)), write_timeout_s=60.0)
    connection = await rig.connect()
    connection.send(chat_request(stream=True))
    await connection.read_until(b"data:")
    client = next(iter(rig.gateway.plane.clients))

    await rig.until(lambda: client.transport.get_write_buffer_size() > 100_000)
    sizes = []
    for _ in range(20):
        await asyncio.sleep(0.005)
        sizes.append(client.transport.get_write_buffer_size())

    assert max(sizes) < 2_000_000
    raw = await connection.read_until(b"[DONE]")
    assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_fc24_a_reader_that_stopped_reading_is_cut(rig: Rig) -> None:
    replica = await rig.start_engine(text="x" * 20_000, chunks=800)
    await rig.serve(make_table(make_release(1, replica)), write_timeout_s=0.05)
    connection = await rig.connect()

    connection.send(chat_request(stream=True))
    await connection.read_until(b"data:")

    await rig.until(lambda: not rig.gateway.plane.clients)
    assert rig.replica().in_flight == 0
    await rig.until(lambda: rig.engines["r1"].calls[0].aborted)


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (b'..."usage":{"prompt_tokens":9,"total_tokens":19,"completion_tokens":10}}', (9, 10)),
        (b'..."usage":{"prompt_tokens": 9, "total_tokens":9}}', (9, None)),
        (b'..."usage":null}', (None, None)),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":1}"}', (None, None)),
        (b"", (None, None)),
    ],
)
def test_usage_is_read_from_the_end_or_not_known(tail: bytes, usage: tuple[int | None, int | None]) -> None:
    assert read_usage(tail)[:2] == usage
