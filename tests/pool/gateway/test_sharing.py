"""Limits and views of several gateway processes, over a real Valkey. A minute is scaled down to 3 s."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import redis.asyncio

from launcher.servers import RunningServer
from tests.pool.gateway.fleet import KEY, PREFIX, Member, run_fleet, run_member, run_valkey

WINDOW_S = 3.0


@pytest.fixture
def valkey() -> Iterator[RunningServer]:
    with run_valkey() as server:
        yield server


@pytest.fixture
async def client(valkey: RunningServer) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(valkey.url)
    yield client
    await client.aclose()


async def press(members: list[Member], key: object, *, for_s: float, every_s: float = 0.005) -> None:
    """All of them ask, as often as they can."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + for_s
    while loop.time() < end_s:
        for member in members:
            member.ask(key)  # type: ignore[arg-type]
        await asyncio.sleep(every_s)


def most_in_a_window(members: list[Member]) -> int:
    times = sorted(at_s for member in members for at_s in member.taken_at_s)
    return max(
        sum(end_s - WINDOW_S < at_s <= end_s for at_s in times)
        for end_s in times[:: max(1, len(times) // 200)]
    )


@pytest.mark.parametrize("limit", [30, 400])
async def test_three_processes_pass_a_limit_by_no_more_than_five_percent(
    valkey: RunningServer, limit: int
) -> None:
    key = replace(KEY, requests_per_min=limit)
    async with run_fleet(valkey.url, window_s=WINDOW_S) as members:
        await press(members, key, for_s=2.5 * WINDOW_S)

    assert most_in_a_window(members) <= limit * 1.05
    total = sum(len(member.taken_at_s) for member in members)
    assert total >= 2 * limit
    assert min(len(member.taken_at_s) for member in members) >= total / 6


async def test_one_process_may_use_the_whole_limit(valkey: RunningServer) -> None:
    key = replace(KEY, requests_per_min=90)
    async with run_fleet(valkey.url) as members:
        await press(members[:1], key, for_s=4.0)

    assert len(members[0].taken_at_s) == 90


async def test_a_large_request_gets_a_lease_larger_than_its_process_share(valkey: RunningServer) -> None:
    key = replace(KEY, tokens_per_min=1000)
    async with run_fleet(valkey.url) as members:
        async with asyncio.timeout(4):
            while not members[0].ask(key, tokens=900):
                answered = asyncio.Event()
                members[0].limits.wait_for_lease(answered.set)
                await answered.wait()

        assert not members[1].ask(key, tokens=200)


async def test_a_process_that_starts_again_knows_what_it_used(valkey: RunningServer) -> None:
    key = replace(KEY, requests_per_min=20)
    async with run_member("g0", valkey.url) as member:
        while len(member.taken_at_s) < 20:
            await press([member], key, for_s=0.05)
        await asyncio.sleep(0.5)

    async with run_member("g0", valkey.url) as again:
        while not again.limits.is_settled:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await press([again], key, for_s=0.5)

    assert again.taken_at_s == []


async def test_without_redis_each_keeps_to_its_share_and_the_sum_holds(valkey: RunningServer) -> None:
    key = replace(KEY, requests_per_min=90)
    async with run_fleet(valkey.url, window_s=WINDOW_S) as members:
        await press(members[:1], key, for_s=1.0)
        valkey.stop()
        await press(members, key, for_s=2 * WINDOW_S + 4)
        last_s = asyncio.get_running_loop().time()

    assert most_in_a_window(members) <= 90 * 1.05
    late = [sum(at_s > last_s - WINDOW_S for at_s in member.taken_at_s) for member in members]
    # No more than a third for anyone, and nobody is left out; a busy machine lets them ask less often.
    assert all(15 <= count <= 30 for count in late), late


async def test_when_redis_has_lost_all_the_sum_still_holds(
    valkey: RunningServer, client: redis.asyncio.Redis
) -> None:
    key = replace(KEY, requests_per_min=90)
    async with run_fleet(valkey.url, window_s=WINDOW_S) as members:
        await press(members[:1], key, for_s=1.0)
        await client.flushall()
        await press(members, key, for_s=2 * WINDOW_S)

    assert most_in_a_window(members) <= 90 * 1.05


async def test_a_dead_process_lease_is_free_but_what_it_used_counts(valkey: RunningServer) -> None:
    key = replace(KEY, requests_per_min=90)
    async with run_fleet(valkey.url, count=2) as members:
        await press(members[:1], key, for_s=0.3, every_s=0.02)
        used = len(members[0].taken_at_s)
        assert 5 < used < 40
        await asyncio.sleep(1.2)
        members[0].task.cancel()
        await press(members[1:], key, for_s=5.0)

    assert used + len(members[1].taken_at_s) == 90


async def test_processes_count_each_other_and_notice_an_end(valkey: RunningServer) -> None:
    async with run_fleet(valkey.url) as members:
        assert [member.view.process_count for member in members] == [3, 3, 3]
        members[2].task.cancel()
        await asyncio.sleep(4.0)

        assert [member.view.process_count for member in members[:2]] == [2, 2]
        assert members[0].limits.processes == 2


async def test_loads_and_sections_are_seen_within_a_second(valkey: RunningServer) -> None:
    loop = asyncio.get_running_loop()
    async with run_fleet(valkey.url) as members:
        for member, load in zip(members, [(1, 100), (2, 200), (4, 400)], strict=True):
            member.view.provide_loads(lambda load=load: {("r1", 3): load})  # type: ignore[misc]
            member.view.provide("poison", lambda now_s, name=member.name: [name])  # type: ignore[misc]
        await asyncio.sleep(0.7)

        now_s = loop.time()
        assert members[0].view.others("r1", 3) == (6, 600)
        assert members[2].view.others("r1", 3) == (3, 300)
        assert members[0].view.others("r1", 4) == (0, 0)
        assert sorted(members[0].view.list_sections("poison", now_s)) == [("g1", ["g1"]), ("g2", ["g2"])]


async def test_gauges_come_with_their_age(valkey: RunningServer, client: redis.asyncio.Redis) -> None:
    seconds, micros = await client.time()
    at_ms = seconds * 1000 + micros // 1000 - 2000
    fields = {"at_ms": at_ms, "kv_used_ratio": 0.75, "running": 3, "waiting": None}
    await client.hset(f"{PREFIX}:gauges", "r1.2", json.dumps(fields))
    await client.hset(f"{PREFIX}:gauges", "r2.1", json.dumps(fields | {"at_ms": at_ms - 70_000}))

    async with run_fleet(valkey.url, count=1) as (member,):
        while not member.gauges:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert set(member.gauges) == {("r1", 2)}
    gauges, age_s = member.gauges["r1", 2]
    assert (gauges.kv_used_ratio, gauges.waiting) == (0.75, None)
    assert 1.9 < age_s < 5
    assert await client.hexists(f"{PREFIX}:gauges", "r2.1") is False
