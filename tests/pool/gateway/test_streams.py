"""Streams on their way through the gateway: late gaps, pacing, groups, and what can be told after comments."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.pool.gateway.rig import CHAT, Connection, Rig, chat_body, chat_request
from tests.pool.gateway.tables import keep_alive, make_one

LATE: dict[str, Any] = {"late_gap_ms": 20}


def counter(rig: Rig, name: str, **labels: str) -> float:
    return rig.gateway.plane.metrics.counter(name, **labels).value


async def serve(rig: Rig, lane: dict[str, Any] | None = None, **switches: Any) -> None:
    await rig.serve(make_one(await rig.start_engine(**switches), **(lane or {})))


def read_record(rig: Rig) -> dict[str, Any]:
    (record,) = rig.gateway.plane.facts.take(10)
    return record


# Late gaps.
async def test_three_late_gaps_in_a_row_mark_the_stream_and_let_it_go_on(rig: Rig) -> None:
    await serve(rig, LATE, gap_s=0.05, chunks=6)

    answer = await rig.ask(stream=True)

    assert answer.events[-1] == "[DONE]"
    record = read_record(rig)
    assert record["outcome"] == "ok"
    assert record["late_gaps"] >= 3
    assert counter(rig, "sluice_streams_late_total", model="m") == 1
    assert counter(rig, "sluice_streams_interrupted_total", model="m") == 0


async def test_by_policy_they_end_the_stream_with_a_typed_error(rig: Rig) -> None:
    await serve(rig, {**LATE, "late_gap_policy": "end"}, gap_s=0.05, chunks=40)

    answer = await rig.ask(stream=True)

    assert answer.complete
    assert json.loads(answer.events[-1])["error"]["code"] == "stream_late"
    assert "[DONE]" not in answer.events
    assert read_record(rig)["outcome"] == "late"
    assert counter(rig, "sluice_streams_interrupted_total", model="m") == 1
    await rig.until(lambda: rig.engines["r1"].completions[0].aborted)


@pytest.mark.parametrize("chunks", [2, 3])
async def test_fewer_late_gaps_are_no_fault(rig: Rig, chunks: int) -> None:
    await serve(rig, {**LATE, "late_gap_policy": "end"}, gap_s=0.05, chunks=chunks)

    answer = await rig.ask(stream=True)

    # The first event is the role's; the first word follows at once.
    assert answer.events[-1] == "[DONE]"
    assert counter(rig, "sluice_streams_late_total", model="m") == (1 if chunks == 3 else 0)


async def test_a_long_prefill_is_no_late_gap(rig: Rig) -> None:
    await serve(rig, {**LATE, "late_gap_policy": "end"}, first_s=0.3)

    answer = await rig.ask(stream=True)

    assert answer.events[-1] == "[DONE]"
    assert read_record(rig)["late_gaps"] == 0


async def test_a_client_that_pauses_makes_no_gap_of_the_engines(rig: Rig) -> None:
    await serve(rig, {"late_gap_ms": 400, "late_gap_policy": "end"}, text="x" * 3000, chunks=2000)
    client = await rig.connect()
    client.send(chat_request(stream=True))
    await client.reader.read(1)
    await asyncio.sleep(1.0)

    raw = await client.read_until(b"0\r\n\r\n")

    assert b"data: [DONE]" in raw
    assert read_record(rig)["outcome"] == "ok"


# Pacing and groups.
async def read_timed(client: Connection) -> list[tuple[float, int]]:
    """When the words of a stream came, and how many at once."""
    arrivals: list[tuple[float, int]] = []
    started_s = time.monotonic()
    async with asyncio.timeout(15):
        while b"[DONE]" not in client.raw:
            data = await client.reader.read(65_536)
            client.raw += data
            if count := data.count(b'"content":"'):
                arrivals.append((time.monotonic() - started_s, count))
    return arrivals


async def ask_timed(rig: Rig, **fields: Any) -> list[tuple[float, int]]:
    client = await rig.connect()
    client.send(chat_request(stream=True, **fields))
    return await read_timed(client)


async def test_without_pacing_a_burst_passes_at_once(rig: Rig) -> None:
    await serve(rig, chunks=30)

    arrivals = await ask_timed(rig)

    assert arrivals[-1][0] < 0.3


async def test_pacing_spreads_a_burst_and_sends_the_first_at_once(rig: Rig) -> None:
    await serve(rig, {"pacing_ms": 60}, chunks=60, gap_s=0.005)

    arrivals = await ask_timed(rig)

    assert arrivals[0][0] < 0.1
    assert arrivals[0][1] <= 2
    gaps = [later - earlier for (earlier, _), (later, _) in zip(arrivals, arrivals[1:], strict=False)]
    assert sum(gap >= 0.04 for gap in gaps) >= 3


async def test_paced_bytes_are_the_engines_bytes(rig: Rig) -> None:
    await serve(rig, {"pacing_ms": 5, "group_events": 3}, text="你好 🌍 👩‍👩‍👧", chunks=40)

    answer = await rig.ask(stream=True, stream_options={"include_usage": True})

    assert answer.body == bytes(rig.engines["r1"].completions[0].response)


async def test_a_backlog_never_doubles_an_answer(rig: Rig) -> None:
    await serve(rig, {"pacing_ms": 100}, chunks=200)

    arrivals = await ask_timed(rig)

    assert arrivals[-1][0] < 4.0


async def test_groups_leave_together(rig: Rig) -> None:
    await serve(rig, {"group_events": 4}, chunks=17, gap_s=0.01)

    arrivals = await ask_timed(rig)

    assert [count for _, count in arrivals].count(4) >= 2
    assert len(arrivals) < 9


async def test_a_group_that_does_not_fill_up_leaves_in_time(rig: Rig) -> None:
    await serve(rig, {"group_events": 50}, chunks=6, gap_s=0.08)

    arrivals = await ask_timed(rig)

    assert len(arrivals) >= 3


async def test_pacing_does_not_make_gaps_late(rig: Rig) -> None:
    await serve(rig, {**LATE, "pacing_ms": 60, "late_gap_policy": "end"}, chunks=8)

    answer = await rig.ask(stream=True)

    assert answer.events[-1] == "[DONE]"
    assert read_record(rig)["late_gaps"] == 0


async def test_a_paced_stream_that_breaks_shows_all_that_came_before(rig: Rig) -> None:
    await serve(rig, {"pacing_ms": 50}, chunks=20, close_at=10)

    answer = await rig.ask(stream=True)

    assert len(answer.text.split()) == 10
    assert json.loads(answer.events[-1])["error"]["code"] == "stream_interrupted"


async def test_a_paced_stream_that_is_left_leaves_no_timer(rig: Rig) -> None:
    await serve(rig, {"pacing_ms": 30}, chunks=100)
    client = await rig.connect()
    client.send(chat_request(stream=True))
    await client.read_until(b"content")

    client.abort()
    await rig.until(lambda: not rig.gateway.plane.exchanges)
    await asyncio.sleep(0.1)

    assert not rig.gateway.plane.clients


# What can be told after comments.
async def serve_comments(rig: Rig, **switches: Any) -> None:
    await rig.serve(keep_alive(make_one(await rig.start_engine(**switches)), 0.05))


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500])
async def test_after_comments_an_engines_refusal_comes_in_its_own_words(rig: Rig, status: int) -> None:
    await serve_comments(rig, err=status, err_s=0.2)

    answer = await rig.ask(stream=True)

    assert answer.body.startswith(b": keep-alive")
    error = json.loads(answer.events[-1])["error"]
    assert (error["code"], error["message"]) == (status, f"the switch err={status}")
    assert error["request_id"] == answer.headers["x-request-id"]
    record = read_record(rig)
    assert (record["status"], record["outcome"]) == (
        status, "client_error" if status < 500 else "engine_error",
    )  # fmt: skip


async def test_a_refusal_in_pieces_is_told_whole(rig: Rig) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        body = b'{"error":{"message":"too long","type":"BadRequestError","param":"input_tokens","code":400}}'
        writer.write(b"HTTP/1.1 400 X\r\ncontent-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 10):
            writer.write(body[at : at + 10])
            await asyncio.sleep(0.002)
        writer.close()

    replica = await rig.start_engine()
    path = str(rig.folder / "other.sock")
    server = await asyncio.start_unix_server(refuse, path)
    async with server:
        await rig.serve(keep_alive(make_one(replace(replica, address=f"unix:{path}")), 0.05))
        answer = await rig.ask(stream=True)

    error = json.loads(answer.events[-1])["error"]
    assert (error["message"], error["param"], error["code"]) == ("too long", "input_tokens", 400)


async def test_a_refusal_after_comments_is_no_fault_of_the_engine(rig: Rig) -> None:
    await serve_comments(rig, err=400, err_s=0.1)

    for _ in range(6):
        await rig.ask(stream=True)

    assert rig.replica().breaker.closed
    assert rig.replica().error_score == 0


async def test_after_comments_in_the_queue_a_refusal_is_a_typed_event(rig: Rig) -> None:
    lane: dict[str, Any] = {"concurrency": 1, "adaptive": False, "queue_timeout_s": 0.3}
    await rig.serve(keep_alive(make_one(await rig.start_engine(gap_s=0.05, chunks=400), **lane), 0.05))
    first = await rig.connect()
    first.send(chat_request(stream=True))
    await rig.until(lambda: rig.engines["r1"].completions)

    answer = await rig.ask(stream=True)

    assert answer.status == 200
    assert answer.body.startswith(b": keep-alive")
    assert json.loads(answer.events[-1])["error"]["code"] == "queue_timeout"
    assert "[DONE]" not in answer.events


async def test_a_connection_serves_on_after_a_stream_with_comments(rig: Rig) -> None:
    await serve_comments(rig, first_s=0.2)
    client = await rig.connect()

    for _ in range(3):
        client.send(chat_request(stream=True))
        answer = await client.read_response()
        assert answer.events[-1] == "[DONE]"


async def test_http_1_0_gets_comments_too(rig: Rig) -> None:
    await serve_comments(rig, first_s=0.2)
    client = await rig.connect()
    client.send(chat_request(chat_body(stream=True), path=CHAT).replace(b"HTTP/1.1", b"HTTP/1.0"))

    raw = await client.read_to_end()

    assert b"\r\n\r\n: keep-alive\n\n" in raw
    assert raw.endswith(b"data: [DONE]\n\n")
