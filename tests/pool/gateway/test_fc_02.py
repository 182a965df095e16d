"""FC-02: an engine that is dead, unreachable or gone from the table costs nobody an answer that had not begun."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace

from pool.domain.routing_table import to_bytes
from tests.pool.gateway.rig import (
    SECRET,
    Rig,
    chat_body,
    chat_request,
    make_release,
    make_replica,
    make_table,
)
from tests.pool.gateway.tables import engine_process, make_busy, make_one, wait_for_socket


async def test_kill_9_of_one_of_three_engines_costs_no_request(rig: Rig) -> None:
    with ExitStack() as engines:
        started = [
            engines.enter_context(engine_process(rig.folder, name, "gap_s=0.005")) for name in ("a", "b", "c")
        ]
        replicas = [replica for replica, _ in started]
        await asyncio.gather(*(wait_for_socket(replica) for replica in replicas))
        await rig.serve(make_one(*replicas))

        async def ask_later(delay_s: float) -> int:
            await asyncio.sleep(delay_s)
            return (await rig.ask()).status

        asked = [asyncio.create_task(ask_later(number / 40)) for number in range(40)]
        await asyncio.sleep(0.5)
        started[0][1].kill()
        statuses = await asyncio.gather(*asked)

    assert statuses == [200] * 40


async def test_an_unreachable_replica_is_asked_once_and_comes_back_by_itself(rig: Rig) -> None:
    gone = make_replica("r1", f"unix:{rig.folder}/r1.sock")
    await rig.serve(make_one(gone, await rig.start_engine("r2")))
    for _ in range(20):
        assert (await rig.ask()).status == 200

    breaker = rig.replica("r1").breaker
    assert (breaker.closed, breaker.counts) == (False, {"connect": 1})

    await rig.start_engine("r1")
    async with asyncio.timeout(5):
        while not rig.engines["r1"].completions:
            assert (await rig.ask()).status == 200
    await rig.until(lambda: breaker.closed)


async def test_a_silent_engine_holds_up_nobody_elses_request(rig: Rig) -> None:
    silent, sound = await rig.start_engine("r1", hang_after=0), await rig.start_engine("r2")
    await rig.serve(make_one(silent, sound))
    make_busy(rig.replica("r2"))
    stuck = await rig.connect()
    stuck.send(chat_request())
    await rig.until(lambda: rig.engines["r1"].completions)
    rig.replica("r2").in_flight = rig.replica("r2").in_flight_tokens = 0

    async with asyncio.timeout(2):
        answers = [await rig.ask() for _ in range(10)]

    assert {answer.headers["x-sluice-replica"] for answer in answers} == {"r2"}


async def test_a_new_generation_starts_without_the_old_ones_record(rig: Rig) -> None:
    old = make_replica("r1", f"unix:{rig.folder}/old.sock")
    await rig.serve(make_table(make_release(1, old)))
    assert (await rig.ask()).status == 502

    engine = await rig.start_engine("r1")
    rig.engines["r1"].key = ""
    rig.apply(make_table(make_release(1, replace(engine, generation=2)), version=2))

    assert (await rig.ask()).status == 200
    closed = {one.generation: one.breaker.closed for one in rig.gateway.plane.routes.replicas}
    assert closed == {1: False, 2: True}


async def test_a_replica_that_left_the_table_gets_no_further_request(rig: Rig) -> None:
    first, second = await rig.start_engine("r1"), await rig.start_engine("r2")
    await rig.serve(make_table(make_release(1, first, second)))
    for _ in range(4):
        await rig.ask()
    before = len(rig.engines["r1"].completions)

    rig.apply(make_table(make_release(1, second), version=2))
    for _ in range(10):
        assert (await rig.ask()).headers["x-sluice-replica"] == "r2"

    assert len(rig.engines["r1"].completions) == before


async def test_a_gateway_that_starts_while_nothing_is_ready_says_503_and_not_404(rig: Rig) -> None:
    folder = rig.folder / "gateway"
    folder.mkdir()
    (folder / "table-0.bin").write_bytes(to_bytes(make_table(make_release(1)), SECRET))
    await rig.serve(None)

    known, unknown = await rig.ask(), await rig.ask({**chat_body(), "model": "nobody"})

    assert (known.status, known.error["code"]) == (503, "no_ready_replica")
    assert int(known.headers["retry-after"]) > 0
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


async def test_all_replicas_dead_is_told_at_once_and_typed(rig: Rig) -> None:
    await rig.serve(make_one(*(make_replica(name, f"unix:{rig.folder}/{name}.sock") for name in ("a", "b"))))

    async with asyncio.timeout(2):
        answers = [await rig.ask() for _ in range(5)]

    assert {(answer.status, answer.error["code"]) for answer in answers} <= {
        (502, "upstream_failed"),
        (503, "no_ready_replica"),
    }
