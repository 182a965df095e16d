"""FC-43: keep-alive comments carry a stream over hops that cut silent connections, for keys that want them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.pool.gateway.rig import KEY, Response, Rig, chat_request
from tests.pool.gateway.tables import keep_alive, make_busy, make_one

IDLE_LIMIT_S = 0.2
"""Of the hop in between; 10 s scaled 1 : 50."""
PREFILL_S = 0.8


@asynccontextmanager
async def impatient_proxy(rig: Rig) -> AsyncIterator[int]:
    """Cuts a connection on which nothing came from the gateway for IDLE_LIMIT_S; yields its port."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, request = await asyncio.open_connection("127.0.0.1", rig.gateway.port)
        request.write(await reader.read(65_536))
        try:
            while data := await asyncio.wait_for(upstream.read(65_536), IDLE_LIMIT_S):
                writer.write(data)
        except TimeoutError:
            writer.transport.abort()
        finally:
            request.close()
            writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        rig.port = server.sockets[0].getsockname()[1]
        yield rig.port
        rig.port = 0


async def serve(
    rig: Rig, *, comments: bool = True, lane: dict[str, Any] | None = None, **switches: Any
) -> None:
    table = make_one(await rig.start_engine(**switches), **(lane or {}))
    await rig.serve(keep_alive(table, 0.05) if comments else table)


def list_comments(answer: Response) -> list[bytes]:
    return [line for line in answer.body.split(b"\n") if line.startswith(b":")]


async def test_a_long_prefill_survives_an_impatient_hop(rig: Rig) -> None:
    await serve(rig, first_s=PREFILL_S)

    async with impatient_proxy(rig):
        answer = await rig.ask(stream=True)

    assert len(list_comments(answer)) >= 4
    assert answer.events[-1] == "[DONE]"
    assert answer.text.split() == rig.engines["r1"].switches.text.split()


async def test_the_same_hop_cuts_a_key_without_comments(rig: Rig) -> None:
    await serve(rig, comments=False, first_s=PREFILL_S)

    async with impatient_proxy(rig):
        answer = await rig.ask(stream=True)

    assert not answer.complete


async def test_who_did_not_ask_gets_the_engines_bytes_and_no_comment(rig: Rig) -> None:
    await serve(rig, comments=False, first_s=0.3)

    answer = await rig.ask(stream=True, stream_options={"include_usage": True})

    assert answer.body == bytes(rig.engines["r1"].completions[0].response)


async def test_a_plain_answer_holds_no_comment(rig: Rig) -> None:
    await serve(rig, first_s=0.3)

    answer = await rig.ask()

    assert answer.body == bytes(rig.engines["r1"].completions[0].response)


async def test_a_stream_that_flows_needs_no_comment(rig: Rig) -> None:
    await serve(rig, gap_s=0.005, chunks=40)

    assert not list_comments(await rig.ask(stream=True))


async def test_an_early_head_forbids_buffering_on_the_way(rig: Rig) -> None:
    await serve(rig, first_s=0.3)

    answer = await rig.ask(stream=True)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert "no-cache" in answer.headers["cache-control"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("switches", "lane"),
    [
        ({"die_at": 0, "ms_per_ktok": 50_000}, {}),
        ({"err": 500, "err_s": 0.3}, {}),
        ({"err": 400, "err_s": 0.3}, {}),
        ({"hang_after": 0}, {"first_byte_timeout_s": 0.3}),
    ],
)
async def test_a_failure_after_comments_is_an_error_event_and_no_end(
    rig: Rig, switches: dict[str, Any], lane: dict[str, Any]
) -> None:
    await serve(rig, lane=lane, **switches)

    answer = await rig.ask(stream=True)

    assert answer.status == 200
    assert list_comments(answer)
    assert json.loads(answer.events[-1])["error"]["code"]
    assert "[DONE]" not in answer.events
    assert answer.complete


async def test_after_comments_the_request_may_still_go_elsewhere(rig: Rig) -> None:
    first = await rig.start_engine("r1", ms_per_ktok=50_000, die_at=0)
    second = await rig.start_engine("r2")
    await rig.serve(keep_alive(make_one(first, second), 0.05))
    make_busy(rig.replica("r2"))

    answer = await rig.ask(stream=True)

    assert list_comments(answer)
    assert answer.events[-1] == "[DONE]"
    assert answer.text.split() == rig.engines["r2"].switches.text.split()
    assert len(rig.engines["r2"].completions) == 1


async def test_comments_go_out_while_a_request_queues(rig: Rig) -> None:
    await serve(rig, lane={"concurrency": 1, "adaptive": False}, gap_s=0.02, chunks=20)
    first = await rig.connect()
    first.send(chat_request(stream=True))
    await rig.until(lambda: rig.engines["r1"].completions)

    answer = await rig.ask(stream=True, max_tokens=2)

    assert list_comments(answer)
    assert answer.events[-1] == "[DONE]"


async def test_time_to_first_token_does_not_count_comments(rig: Rig) -> None:
    await serve(rig, first_s=0.3)

    await rig.ask(stream=True)

    (record,) = rig.gateway.plane.facts.take(10)
    assert record["ttft_s"] > 0.25


async def test_openais_client_reads_over_comments(rig: Rig) -> None:
    await serve(rig, first_s=0.3)
    address = f"http://127.0.0.1:{rig.gateway.port}/v1"

    async with openai.AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        words = [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert "".join(words).split() == rig.engines["r1"].switches.text.split()


async def test_openais_client_sees_a_failure_after_comments_as_an_error(rig: Rig) -> None:
    await serve(rig, ms_per_ktok=50_000, die_at=0)
    address = f"http://127.0.0.1:{rig.gateway.port}/v1"

    async with openai.AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hello " * 6}], stream=True
        )
        with pytest.raises(openai.APIError):
            _ = [chunk async for chunk in stream]
