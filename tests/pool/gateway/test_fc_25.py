"""FC-25: connections to engines come back on every path, and none is closed under a live stream."""

import asyncio
import os
from dataclasses import replace

import pytest

from tests.pool.gateway.rig import Rig, chat_request, make_release, make_table
from tests.pool.gateway.tables import make_one


def count_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_50_errors_and_50_cancels_leave_room_for_the_next_at_once(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(), concurrency=4, adaptive=False, queue_limit=200))
    engine = rig.engines["r1"]
    for prompt in ("ERR:429", "ERR:400"):
        await asyncio.gather(*(rig.ask(prompt=prompt, stream=True) for _ in range(25)))
    engine.switches.gap_s = 0.01
    connections = [await rig.connect() for _ in range(50)]
    for connection in connections:
        connection.send(chat_request(stream=True))
    await rig.until(lambda: engine.running)
    for connection in connections:
        connection.abort()
    await rig.until(lambda: not rig.gateway.plane.exchanges)
    engine.switches.gap_s = 0.0

    async with asyncio.timeout(1):
        answers = await asyncio.gather(*(rig.ask() for _ in range(4)))

    assert [answer.status for answer in answers] == [200] * 4
    assert rig.replica().in_flight == 0


async def test_no_file_stays_open_after_broken_answers(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(close_at=2), await rig.start_engine("r2", close_at=0)))

    async def ask(stream: bool) -> None:
        connection = await rig.connect()
        connection.send(chat_request(stream=stream))
        await connection.read_response()
        connection.close()
        await connection.writer.wait_closed()

    await ask(True)
    before = count_files()
    for _ in range(20):
        await asyncio.gather(*(ask(stream) for stream in (True, False, True)))

    await rig.until(lambda: count_files() <= before + 2)


async def test_a_live_stream_outlives_idle_limits_and_table_swaps(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.gateway.process.IDLE_MAX_S", 0.02)
    first, second = await rig.start_engine("r1", gap_s=0.02, chunks=25), await rig.start_engine("r2")
    await rig.serve(make_table(make_release(1, first)))
    stream = asyncio.create_task(rig.ask(stream=True))
    await rig.until(lambda: rig.engines["r1"].tokens)

    for version in range(2, 12):
        replicas = (second,) if version % 2 else (first, second)
        rig.apply(make_table(make_release(1, *replicas), version=version))
        assert (await rig.ask(max_tokens=1)).status == 200
        await asyncio.sleep(0.01)

    answer = await stream
    assert answer.events[-1] == "[DONE]"
    assert len(answer.text.split()) == 25


async def test_half_closed_idle_connections_cost_no_request(rig: Rig) -> None:
    engine = await rig.start_engine(gap_s=0.002)
    await rig.serve(make_one(engine))
    await asyncio.gather(*(rig.ask() for _ in range(8)))
    assert rig.replica().pool.idle_count >= 4

    for connection in list(rig.engines["r1"].connections):
        asyncio.get_running_loop().call_soon(connection.transport.close)
    answers = await asyncio.gather(*(rig.ask() for _ in range(8)))

    assert [answer.status for answer in answers] == [200] * 8
    assert rig.replica().breaker.closed


async def test_a_replica_that_left_and_came_back_serves_again(rig: Rig) -> None:
    replica = await rig.start_engine()
    table = make_table(make_release(1, replica))
    await rig.serve(table)
    await rig.ask()

    rig.apply(replace(make_table(make_release(1)), version=2))
    rig.apply(replace(table, version=3))

    assert (await rig.ask()).status == 200
