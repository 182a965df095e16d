"""Three real gateway processes on one port, joined by a real Valkey. A minute lasts 4 s here."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from pool.domain.routing_table import KeyRoute, RoutingTable
from tests.pool.gateway.pack import COUNT, Pack, run_pack
from tests.pool.gateway.rig import (
    KEY,
    PIN_KEY,
    Connection,
    Response,
    Rig,
    chat_request,
    make_key,
    make_release,
    make_table,
)
from tests.pool.gateway.short_minutes import WINDOW_S
from tests.pool.gateway.tables import make_one

Taken = list[tuple[float, int]]
"""When a request was sent on by the gateway, and its tokens."""


@pytest.fixture
async def pack(rig: Rig) -> AsyncIterator[Pack]:
    async with run_pack(rig) as pack:
        yield pack


# 5 % a minute, and as much again and more for when answers are seen here: in a minute of 4 s, a tenth of a second that
# an answer comes late weighs as much as 1.5 s would.
SLACK = 1.15
# Each taking the whole would be 3.0; a second of not knowing grows where much else runs.
CUT_SLACK = 1.7


def limit_key(table: RoutingTable, **limits: int) -> RoutingTable:
    key: KeyRoute = make_key(KEY, **limits)
    return replace(table, keys=(key,))


async def press(pack: Pack, *, for_s: float, **fields: Any) -> Taken:
    """Every connection asks as soon as it is answered."""
    taken: Taken = []
    end_s = time.monotonic() + for_s

    async def work(connection: Connection) -> None:
        while time.monotonic() < end_s:
            answer = await pack.ask(connection, **fields)
            if answer.status == 200:
                taken.append((time.monotonic(), json.loads(answer.body)["usage"]["total_tokens"]))
            else:
                assert answer.status == 429
                await asyncio.sleep(0.02)

    await asyncio.gather(*(work(one) for lines in pack.lines.values() for one in lines))
    return taken


def most_in_a_window(taken: Taken, weigh: Callable[[tuple[float, int]], int] = lambda one: 1) -> int:
    return max(
        sum(weigh(one) for one in taken if end_s - WINDOW_S < one[0] <= end_s) for end_s, _ in taken[::3]
    )


async def test_uneven_callers_pass_a_limit_of_requests_by_no_more_than_five_percent(pack: Pack) -> None:
    engine = await pack.rig.start_engine(chunks=1)
    await pack.start(limit_key(make_one(engine), requests_per_min=100))
    await pack.dial(10, 2, 1)

    taken = await press(pack, for_s=3 * WINDOW_S)

    assert most_in_a_window(taken) <= 100 * SLACK
    assert len(taken) >= 250


async def test_uneven_callers_pass_a_limit_of_tokens_by_no_more_than_five_percent(pack: Pack) -> None:
    engine = await pack.rig.start_engine(chunks=4)
    await pack.start(limit_key(make_one(engine), tokens_per_min=3000))
    await pack.dial(10, 2, 1)

    taken = await press(pack, for_s=3 * WINDOW_S, prompt="word " * 10, max_tokens=4)

    assert most_in_a_window(taken, lambda one: one[1]) <= 3000 * SLACK
    assert sum(tokens for _, tokens in taken) >= 0.8 * 3 * 3000


async def test_a_limit_of_requests_in_flight_holds_over_processes_and_one_may_use_it_all(pack: Pack) -> None:
    engine = await pack.rig.start_engine(chunks=10, gap_s=0.02)
    await pack.start(make_one(engine, concurrency=6, adaptive=False, queue_timeout_s=20.0))
    await pack.dial(8, 1, 1)
    busy = max(pack.lines.values(), key=len)
    seen: list[int] = []

    await asyncio.gather(*(pack.ask(one) for one in busy), _watch(pack, seen, for_s=0.3))
    alone = max(seen)
    seen.clear()
    await asyncio.gather(press(pack, for_s=3.0), _watch(pack, seen, for_s=3.0))

    assert alone == 6
    # What was sent before the others had heard of it is over after the first second.
    late = seen[len(seen) // 3 :]
    assert max(late) <= 8
    assert sum(late) / len(late) >= 4


async def _watch(pack: Pack, seen: list[int], *, for_s: float) -> None:
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        seen.append(sum(engine.running for engine in pack.rig.engines.values()))
        await asyncio.sleep(0.01)


async def test_who_has_one_connection_is_not_starved_by_who_has_many(pack: Pack) -> None:
    engine = await pack.rig.start_engine(chunks=5, gap_s=0.02)
    await pack.start(make_one(engine, concurrency=4, adaptive=False, queue_timeout_s=20.0))
    first, second, _ = await pack.dial(12, 1, 1)
    many, few = pack.lines[first], pack.lines[second][0]

    async def ask_often(connection: Connection, count: int) -> None:
        for _ in range(count):
            assert (await pack.ask(connection)).status == 200

    crowd = [asyncio.create_task(ask_often(one, 25)) for one in many]
    await asyncio.sleep(0.5)
    started_s = time.monotonic()
    await ask_often(few, 4)
    took_s = time.monotonic() - started_s
    await asyncio.gather(*crowd)

    assert took_s < 4.0


async def test_a_breaker_that_opens_in_one_process_opens_in_all(pack: Pack) -> None:
    sound, dead = await pack.rig.start_engine("r1"), await pack.rig.start_engine("r2")
    await pack.rig.engines["r2"].stop()
    await pack.start(make_one(sound, dead))
    first, *_ = await pack.dial(1, 1, 1)

    states = await pack.read_states()
    async with asyncio.timeout(60):
        # Each trial that fails opens it for longer; at first for less time than lies between two states.
        while not all(one["phase"] == "open" for one in _breakers(states, "r2")):
            assert (await pack.ask(pack.lines[first][0])).status == 200
            await asyncio.sleep(0.05)
            states = await pack.read_states()

    assert sorted(one["heard"] for one in _breakers(states, "r2")) == [False, True, True]
    assert {one["phase"] for one in _breakers(states, "r1")} == {"closed"}


def _breakers(states: dict[str, dict[str, Any]], replica: str) -> list[dict[str, Any]]:
    return [one["models"]["m"]["releases"]["1"]["replicas"][replica]["breaker"] for one in states.values()]


async def test_a_poison_request_is_refused_by_processes_that_never_saw_it(pack: Pack) -> None:
    names = ("r1", "r2", "r3")
    await pack.start(make_one(*[await pack.rig.start_engine(name, poison="KILLME") for name in names]))
    first, second, third = await pack.dial(1, 1, 1)

    killed = await pack.ask(pack.lines[first][0], prompt="KILLME please")
    await asyncio.sleep(1.0)
    again = [await pack.ask(pack.lines[name][0], prompt="KILLME please") for name in (second, third)]

    assert killed.status == 502
    assert [(one.status, one.error["code"]) for one in again] == [(422, "quarantined")] * 2
    deaths = [
        call for engine in pack.rig.engines.values() for call in engine.completions if b"KILLME" in call.body
    ]
    assert len(deaths) == 2


async def test_without_redis_each_keeps_to_its_share_and_takes_the_whole_again_after_it(pack: Pack) -> None:
    engine = await pack.rig.start_engine(chunks=1)
    await pack.start(limit_key(make_one(engine), requests_per_min=90))
    await pack.dial(4, 1, 1)
    before = await press(pack, for_s=2.0)

    pack.stop_valkey()
    without = await press(pack, for_s=3.5 * WINDOW_S)
    pack.restart_valkey()
    table = limit_key(make_one(engine), requests_per_min=90)
    await pack.publish(replace(table, version=2))
    for lines in list(pack.lines.values())[1:]:
        lines.clear()
    after = await press(pack, for_s=3.5 * WINDOW_S)

    # Where the ledger goes or comes back, a second of not knowing is a quarter of this minute.
    assert most_in_a_window(before + without) <= 90 * CUT_SLACK
    assert most_in_a_window(without) >= 60
    # One process alone gets more than its share of 30 as soon as the ledger is there again.
    assert most_in_a_window(after) > 60
    assert most_in_a_window(without + after) <= 90 * CUT_SLACK


async def test_a_killed_process_is_forgotten_and_what_it_held_is_free(pack: Pack) -> None:
    engine = await pack.rig.start_engine(chunks=400, gap_s=0.05)
    await pack.start(make_one(engine, concurrency=2, adaptive=False, queue_timeout_s=20.0))
    first, second, _ = await pack.dial(2, 1, 1)
    for line in pack.lines[first]:
        line.send(chat_request(stream=True))
        await line.read_until(b"data:")
    await asyncio.sleep(0.5)
    waiting = pack.lines[second][0]
    waiting.send(chat_request(stream=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await waiting.read_until(b"data:")
    pid = await _find_process(pack, in_flight=2)

    os.kill(pid, signal.SIGKILL)
    started_s = time.monotonic()
    await waiting.read_until(b"data:")

    assert time.monotonic() - started_s < 2.0
    await pack.until(lambda _states: pid not in pack.list_workers().values())
    assert (await pack.rig.get("/readyz")).status == 200


async def _find_process(pack: Pack, *, in_flight: int) -> int:
    def holds(states: dict[str, dict[str, Any]]) -> list[str]:
        return [
            name
            for name, one in states.items()
            if one["models"]["m"]["releases"]["1"]["gate"]["replicas"]["r1"]["in_flight"] == in_flight
        ]

    states = await pack.until(holds)
    return pack.list_workers()[holds(states)[0].rpartition(".")[2]]


async def test_a_process_that_leaves_ends_its_streams_and_the_others_go_on(pack: Pack) -> None:
    engine = await pack.rig.start_engine(chunks=20, gap_s=0.05)
    await pack.start(make_one(engine))
    first, second, third = await pack.dial(2, 1, 1)
    for line in pack.lines[first]:
        line.send(chat_request(stream=True))
        await line.read_until(b"data:")
    pid = await _find_process(pack, in_flight=2)

    os.kill(pid, signal.SIGTERM)
    others = [(await pack.ask(pack.lines[name][0])).status for name in (second, third)]
    answers = [await line.read_response() for line in pack.lines[first]]

    assert others == [200, 200]
    assert [answer.events[-1] for answer in answers] == ["[DONE]"] * 2
    fresh = [(await pack.rig.ask()).status for _ in range(10)]
    assert fresh == [200] * 10


async def test_the_metrics_of_any_process_are_those_of_all(pack: Pack) -> None:
    await pack.start(make_one(await pack.rig.start_engine()))
    names = await pack.dial(1, 1, 1)
    for count, name in enumerate(names, 2):
        for _ in range(count):
            await pack.ask(pack.lines[name][0])
    await asyncio.sleep(2.5)

    pages = [await _read_metrics(pack.lines[name][0]) for name in names]

    assert pages == [2 + 3 + 4] * COUNT


async def _read_metrics(connection: Connection) -> int:
    connection.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    page = (await connection.read_response()).body.decode()
    lines = [
        line for line in page.splitlines() if line.startswith("sluice_requests_total") and '"ok"' in line
    ]
    return sum(int(line.rpartition(" ")[2]) for line in lines)


async def test_a_revoked_key_is_refused_by_every_process_within_five_seconds(pack: Pack) -> None:
    table = make_table(make_release(1, await pack.rig.start_engine()))
    await pack.start(table)
    names = await pack.dial(2, 2, 2)
    lines = [line for name in names for line in pack.lines[name]]
    assert {(await pack.ask(line)).status for line in lines} == {200}

    await pack.publish(replace(table, version=2, keys=(make_key(PIN_KEY),)))
    started_s = time.monotonic()
    answers: list[Response] = []
    while not answers or {one.status for one in answers} != {401}:
        answers = [await pack.ask(line) for line in lines]

    assert time.monotonic() - started_s < 5.0
