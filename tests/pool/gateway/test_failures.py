"""Engines that die, hang, stall and break off; clients that leave."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pool.domain.routing_table import ReplicaRoute
from pool.gateway.relay import Exchange
from tests.pool.gateway.rig import Rig, chat_request, make_release, make_replica, make_table
from tests.pool.gateway.tables import make_busy


@asynccontextmanager
async def raw_engine(rig: Rig, answer: bytes) -> AsyncIterator[ReplicaRoute]:
    """One that says these bytes to every request, and closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(answer)
        writer.close()

    path = f"{rig.folder}/raw.sock"
    server = await asyncio.start_unix_server(talk, path)
    async with server:
        yield make_replica("r1", f"unix:{path}")


@pytest.mark.parametrize("switch", ["die_at", "close_at", "bad_json_at", "error_at"])
async def test_fc05_a_broken_stream_ends_with_an_error_and_never_looks_finished(
    rig: Rig, switch: str
) -> None:
    switches: dict[str, Any] = {"chunks": 8, switch: 5}
    await rig.serve(make_table(make_release(1, await rig.start_engine(**switches))))
    connection = await rig.connect()

    connection.send(chat_request(stream=True))
    answer = await connection.read_response()
    rest = await connection.read_to_end()

    error = json.loads(answer.events[-1])["error"]
    assert error["code"] == "stream_interrupted"
    assert error["request_id"] == answer.headers["x-request-id"]
    assert b"[DONE]" not in rest
    assert rest.count(b'"error"') == 1
    assert answer.text.split() == rig.engines["r1"].switches.text.split()[:5]


async def test_fc05_a_stalled_stream_is_broken_off(rig: Rig) -> None:
    await rig.serve(
        make_table(make_release(1, await rig.start_engine(stall_at=5)), lane={"idle_timeout_s": 0.1})
    )

    answer = await rig.ask(stream=True)

    assert json.loads(answer.events[-1])["error"]["code"] == "stream_interrupted"
    assert "[DONE]" not in answer.events
    await rig.until(lambda: rig.engines["r1"].calls[0].aborted, within_s=1.0)


async def test_fc05_the_record_of_a_broken_stream_says_so(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(close_at=5))))

    await rig.ask(stream=True)

    (record,) = rig.gateway.plane.facts.take(10)
    assert (record["outcome"], record["status"]) == ("interrupted", 200)
    assert record["chunks"] == 6
    assert (record["output_tokens"], record["estimated"]) == (6, True)


async def test_fc05_an_event_cut_in_the_middle_does_not_reach_the_client(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(close_at=3, cut=(700,)))))

    answer = await rig.ask(stream=True)

    assert all(json.loads(event) for event in answer.events)


async def test_fc05_a_death_before_the_first_byte_is_not_noticed_by_the_client(rig: Rig) -> None:
    dying = await rig.start_engine("r1", die_at=0)
    await rig.serve(make_table(make_release(1, dying)))
    rig.apply(make_table(make_release(1, dying, await rig.start_engine("r2")), version=2))

    answers = [await rig.ask(stream=True) for _ in range(6)]

    assert all(answer.events[-1] == "[DONE]" for answer in answers)


async def test_fc06_nothing_is_sent_twice_after_the_first_byte(rig: Rig) -> None:
    first = await rig.start_engine("r1", die_at=3)
    second = await rig.start_engine("r2")
    await rig.serve(make_table(make_release(1, first, make_replica("r2", second.address, lane="never"))))

    answer = await rig.ask(stream=True)

    assert rig.engines["r1"].switches.text.startswith(answer.text.strip())
    assert json.loads(answer.events[-1])["error"]["code"] == "stream_interrupted"
    assert not rig.engines["r2"].calls


async def test_fc06_a_request_that_lost_its_engine_goes_to_exactly_one_other(rig: Rig) -> None:
    first = await rig.start_engine("r1", die_at=0)
    second = await rig.start_engine("r2")
    await rig.serve(make_table(make_release(1, first, second)))
    make_busy(rig.replica("r2"))

    answer = await rig.ask(stream=True)

    assert answer.headers["x-sluice-replica"] == "r2"
    assert len(rig.engines["r1"].calls) == len(rig.engines["r2"].calls) == 1


async def test_fc02_a_dead_replica_costs_no_request(rig: Rig) -> None:
    replicas = [await rig.start_engine(name) for name in ("r1", "r2", "r3")]
    await rig.serve(make_table(make_release(1, *replicas)))
    for _ in range(6):
        await rig.ask()

    await rig.engines["r1"].stop()
    answers = await asyncio.gather(*(rig.ask() for _ in range(30)))

    assert {answer.status for answer in answers} == {200}


async def test_fc02_a_replica_that_cannot_be_reached_is_passed_over_for_a_while(rig: Rig) -> None:
    gone = make_replica("r1", f"unix:{rig.folder}/nothing.sock")
    await rig.serve(make_table(make_release(1, gone, await rig.start_engine("r2"))))

    for _ in range(20):
        assert (await rig.ask()).status == 200

    assert rig.replica("r1").breaker.counts == {"connect": 1}


async def test_fc02_a_single_replica_gets_a_trial_although_it_failed(rig: Rig) -> None:
    replica = make_replica("r1", f"unix:{rig.folder}/r1.sock")
    await rig.serve(make_table(make_release(1, replica)))

    first = await rig.ask()
    await rig.start_engine("r1")
    second = await rig.ask()

    assert (first.status, first.error["code"]) == (502, "upstream_failed")
    assert second.status == 200


async def test_fc02_a_known_model_without_a_replica_is_told_to_wait(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1)))

    answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (503, "no_ready_replica")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_model_whose_replicas_are_coming_says_starting_up(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1), starting=1))

    answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (503, "starting_up")
    assert "retry-after" in answer.headers


async def test_a_request_that_kills_engines_reaches_two_at_most(rig: Rig) -> None:
    replicas = [await rig.start_engine(name, poison="KILLME") for name in ("r1", "r2", "r3")]
    await rig.serve(make_table(make_release(1, *replicas)))

    answer = await rig.ask(prompt="KILLME please")

    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert sum(len(engine.calls) for engine in rig.engines.values()) == 2


async def test_an_idle_connection_that_the_engine_closed_is_replaced(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    await rig.ask()
    engine = rig.engines["r1"]
    pool = rig.replica().pool

    # Closed at the engine, not yet noticed by the gateway: the moment that cannot be avoided.
    asyncio.get_running_loop().call_soon(next(iter(engine.connections)).transport.abort)
    answer = await rig.ask()

    assert answer.status == 200
    assert engine.connections_made == 2
    assert pool.idle_count == 1


async def test_an_engine_that_never_answers_gives_504_and_is_let_go(rig: Rig) -> None:
    await rig.serve(
        make_table(make_release(1, await rig.start_engine(hang_after=0)), lane={"total_timeout_s": 0.1})
    )

    answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
    await rig.until(lambda: rig.engines["r1"].calls[0].aborted, within_s=1.0)


async def test_an_engine_that_does_not_accept_in_time_is_left(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        silent = make_replica("r1", f"http://127.0.0.1:{port}")
        await rig.serve(make_table(make_release(1, silent), lane={"connect_timeout_s": 0.1}))
        # The backlog takes one; after it the kernel drops what knocks.
        with socket.create_connection(("127.0.0.1", port)):
            answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")


async def test_a_plain_answer_cut_in_the_middle_is_an_error(rig: Rig) -> None:
    async with raw_engine(rig, b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 50) as replica:
        await rig.serve(make_table(make_release(1, replica)))
        answer = await rig.ask()

    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")


async def test_a_large_plain_answer_cut_in_the_middle_does_not_look_complete(rig: Rig) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n30d40\r\n"
    async with raw_engine(rig, head + b"x" * 200_000 + b"\r\n") as replica:
        await rig.serve(make_table(make_release(1, replica)))
        answer = await rig.ask()

    assert answer.status == 200
    assert not answer.complete


@pytest.mark.parametrize("answer", [b"rubbish\r\n\r\n", b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n"])
async def test_an_engine_that_speaks_nonsense_is_an_upstream_failure(rig: Rig, answer: bytes) -> None:
    async with raw_engine(rig, answer) as replica:
        await rig.serve(make_table(make_release(1, replica)))
        got = await rig.ask()

    assert (got.status, got.error["code"]) == (502, "upstream_failed")


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data: [DONE]"])
async def test_a_stream_that_ends_by_closing_is_finished_if_it_said_done(rig: Rig, end: bytes) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with raw_engine(rig, interim + head + b'data: {"a":1}\n\n' + end) as replica:
        await rig.serve(make_table(make_release(1, replica)))
        answer = await rig.ask(stream=True)

    assert answer.complete
    assert answer.body == b'data: {"a":1}\n\n' + end


@pytest.mark.parametrize(
    ("switches", "fields", "mark"),
    [
        ({"hang_after": 0}, {"stream": True}, b""),
        ({"hang_after": 0}, {"stream": False}, b""),
        ({"gap_s": 0.02, "chunks": 500}, {"stream": True}, b"capital"),
        ({"gap_s": 0.02, "chunks": 500}, {"stream": False}, b""),
    ],
)
async def test_fc07_a_client_that_leaves_ends_the_generation_within_a_second(
    rig: Rig, switches: dict[str, Any], fields: dict[str, Any], mark: bytes
) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(**switches))))
    connection = await rig.connect()
    connection.send(chat_request(**fields))
    await rig.until(lambda: rig.engines["r1"].calls)
    await connection.read_until(mark)

    connection.close()

    await rig.until(lambda: rig.engines["r1"].calls[0].aborted, within_s=1.0)
    assert rig.replica().in_flight == 0
    (record,) = rig.gateway.plane.facts.take(10)
    assert (record["outcome"], record["status"]) == ("client_gone", 499)


async def test_fc07_a_client_that_leaves_while_the_gateway_connects_costs_nothing(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    plane = rig.gateway.plane
    connection = await rig.connect()
    begin = plane.begin

    def begin_and_leave(exchange: Exchange) -> None:
        begin(exchange)
        asyncio.get_running_loop().call_soon(exchange.on_client_gone)

    plane.begin = begin_and_leave  # type: ignore[method-assign]
    connection.send(chat_request())

    await rig.until(lambda: rig.replica().pool.idle_count == 1)
    assert rig.replica().in_flight == 0


async def test_fc24_all_slots_come_back_after_500_mixed_calls(rig: Rig) -> None:
    replicas = [await rig.start_engine(name, gap_s=0.002, chunks=20) for name in ("r1", "r2")]
    await rig.serve(make_table(make_release(1, *replicas), lane={"idle_timeout_s": 2.0}))
    dice = random.Random(7)

    async def call() -> None:
        prompt = dice.choice(["fine", "fine", "ERR:429", "ERR:500", "ERR:503"])
        connection = await rig.connect()
        connection.send(chat_request(prompt=prompt, stream=dice.random() < 0.7))
        if dice.random() < 0.5:
            await asyncio.sleep(dice.random() * 0.05)
            dice.choice([connection.close, connection.abort])()
        else:
            await connection.read_response()

    for _ in range(10):
        await asyncio.gather(*(call() for _ in range(50)))

    await rig.until(lambda: not rig.gateway.plane.exchanges)
    assert [replica.in_flight for replica in rig.gateway.plane.routes.replicas] == [0, 0]
    await rig.until(lambda: all(engine.running == 0 for engine in rig.engines.values()))
    page = (await rig.get("/metrics")).body.decode()
    assert all(line.endswith(" 0") for line in page.splitlines() if line.startswith("sluice_in_flight{"))


async def test_fc25_errors_and_cancels_leave_no_connection_behind(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    engine = rig.engines["r1"]

    for prompt in ("ERR:429", "ERR:400"):
        await asyncio.gather(*(rig.ask(prompt=prompt, stream=True) for _ in range(25)))
    engine.switches.gap_s = 0.01
    for _ in range(5):
        connections = [await rig.connect() for _ in range(10)]
        for connection in connections:
            connection.send(chat_request(stream=True))
        await asyncio.gather(*(connection.read_until(b"data:") for connection in connections))
        for connection in connections:
            connection.abort()

    await rig.until(lambda: not rig.gateway.plane.exchanges)
    assert [(await rig.ask()).status for _ in range(4)] == [200] * 4
    await rig.until(lambda: len(engine.connections) == rig.replica().pool.idle_count)


async def test_an_engine_that_speaks_unasked_loses_its_connection(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    await rig.ask()

    next(iter(rig.engines["r1"].connections)).transport.write(b"HTTP/1.1 408 Timeout\r\n\r\n")

    await rig.until(lambda: rig.replica().pool.idle_count == 0)
    assert (await rig.ask()).status == 200


async def test_idle_connections_are_closed_before_the_engine_would(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.process.IDLE_MAX_S", 0.02)
    await rig.serve(make_table(make_release(1, await rig.start_engine())))

    await rig.ask()

    await rig.until(lambda: not rig.engines["r1"].connections)
