"""FC-07: a caller that leaves ends its generation within a second, wherever the request is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.pool.gateway.rig import Rig, chat_request
from tests.pool.gateway.tables import keep_alive, make_one


async def test_a_caller_that_leaves_while_it_queues_never_reaches_an_engine(rig: Rig) -> None:
    engine = await rig.start_engine(gap_s=0.02, chunks=500)
    await rig.serve(make_one(engine, concurrency=1, adaptive=False))
    first, second = await rig.connect(), await rig.connect()
    first.send(chat_request(stream=True))
    await rig.until(lambda: rig.engines["r1"].completions)
    second.send(chat_request(stream=True))
    await rig.until(lambda: len(rig.gateway.plane.exchanges) == 2)
    await asyncio.sleep(0.05)

    second.abort()
    await rig.until(lambda: len(rig.gateway.plane.exchanges) == 1, within_s=1.0)
    first.abort()
    await rig.until(lambda: not rig.gateway.plane.exchanges, within_s=1.0)

    assert len(rig.engines["r1"].completions) == 1
    assert rig.replica().in_flight == 0
    assert [record["outcome"] for record in rig.gateway.plane.facts.take(10)] == ["client_gone"] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("switches", [{"hang_after": 0}, {"gap_s": 0.02, "chunks": 500}])
async def test_the_engine_notices_and_is_not_blamed(
    rig: Rig, tmp_path: Path, switches: dict[str, Any], stream: bool
) -> None:
    log = tmp_path / "aborts"
    await rig.serve(make_one(await rig.start_engine(abort_log=str(log), **switches)))
    connection = await rig.connect()
    connection.send(chat_request(stream=stream))
    await rig.until(lambda: rig.engines["r1"].completions)

    connection.abort()

    await rig.until(log.exists, within_s=1.0)
    await rig.until(lambda: not rig.gateway.plane.exchanges)
    assert log.read_text().split()[0] == rig.engines["r1"].completions[0].headers["x-request-id"]
    assert rig.replica().breaker.counts == {}
    assert rig.replica().breaker.closed


async def test_many_callers_that_leave_do_not_open_a_breaker(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(gap_s=0.02, chunks=500)))
    for _ in range(3):
        connections = [await rig.connect() for _ in range(10)]
        for connection in connections:
            connection.send(chat_request(stream=True))
        await asyncio.gather(*(connection.read_until(b"data:") for connection in connections))
        for connection in connections:
            connection.abort()
        await rig.until(lambda: not rig.gateway.plane.exchanges)

    assert rig.replica().breaker.closed
    await rig.until(lambda: rig.engines["r1"].running == 0)


async def test_a_caller_that_leaves_during_keep_alive_comments_is_noticed(rig: Rig) -> None:
    table = make_one(await rig.start_engine(hang_after=0))
    await rig.serve(keep_alive(table, 0.05))
    connection = await rig.connect()
    connection.send(chat_request(stream=True))
    await connection.read_until(b":")

    connection.close()

    await rig.until(lambda: rig.engines["r1"].completions[0].aborted, within_s=1.0)
    await rig.until(lambda: not rig.gateway.plane.exchanges)
    (record,) = rig.gateway.plane.facts.take(10)
    assert (record["outcome"], record["status"]) == ("client_gone", 499)


async def test_a_caller_that_leaves_during_a_trial_leaves_room_for_the_next(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(err=500)))
    for _ in range(3):
        await rig.ask()
    engine = rig.engines["r1"]
    engine.switches.err = None
    engine.freeze()
    connection = await rig.connect()
    connection.send(chat_request())
    await rig.until(lambda: len(engine.completions) == 4)

    connection.abort()
    await rig.until(lambda: not rig.gateway.plane.exchanges)
    engine.thaw()

    assert (await rig.ask()).status == 200
    assert rig.replica().breaker.closed
