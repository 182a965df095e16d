"""The cache's second layer, against a real Valkey, and against one that is slow, broken or away."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError

from launcher.servers import RunningServer, start_valkey
from pool.gateway.answer_cache import AnswerCache, Turn
from pool.gateway.answer_store import AnswerStore
from tests.pool.gateway.test_answer_cache import ANSWER, BOTH, CACHED, Asker, Desk

PREFIX = "sluice:test"


@pytest.fixture(scope="module")
def valkey() -> Iterator[RunningServer]:
    folder = Path(tempfile.mkdtemp(prefix="sluice-gw-", dir="/tmp"))
    server = start_valkey(folder / "valkey", folder / "run", durable=False)
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def client(valkey: RunningServer) -> AsyncIterator["redis.asyncio.Redis"]:
    client = redis.asyncio.Redis.from_url(valkey.url)
    await client.flushdb()
    yield client
    await client.aclose()


class Broken:
    """In place of a client: each call takes a while, then fails, or never ends."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs
        self.calls = 0

    async def get(self, name: str) -> bytes | None:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        raise RedisConnectionError("gone")

    async def set(self, name: str, value: bytes, **more: Any) -> None:
        await self.get(name)


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not look():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


async def find(client: "redis.asyncio.Redis", key: bytes) -> bytes:
    """What is kept under the key, once it is there."""
    async with asyncio.timeout(5):
        while True:
            kept = await client.get(f"{PREFIX}:answer:{key.hex()}")
            if isinstance(kept, bytes):
                return kept
            await asyncio.sleep(0.005)


def open_desk(client: Any, settings: Any = CACHED) -> Desk:
    desk = Desk(settings)
    desk.cache.attach(client, prefix=PREFIX)
    desk.now_s = time.monotonic()
    return desk


async def test_an_answer_is_found_by_another_process(client: "redis.asyncio.Redis") -> None:
    first, second = open_desk(client), open_desk(client)

    assert first.ask(asker := Asker()) is Turn.WAIT
    await until(lambda: asker.told)
    assert asker.told == [Turn.GO]
    first.settle(asker, ANSWER)
    await find(client, first.key)
    assert second.ask(other := Asker()) is Turn.WAIT
    await until(lambda: other.told)

    assert other.told == [ANSWER]
    assert second.tally()["shared_hits"] == 1
    assert second.ask(Asker()) == ANSWER
    assert 59_000 < await client.pttl(f"{PREFIX}:answer:{first.key.hex()}") <= 60_000


async def test_an_answer_keeps_its_age_on_the_way(client: "redis.asyncio.Redis") -> None:
    desk = open_desk(client)
    store = AnswerStore(secret=desk.cache._secret)
    sealed = store._seal(desk.key, ANSWER)
    await client.set(f"{PREFIX}:answer:{desk.key.hex()}", sealed)
    await asyncio.sleep(0.05)

    desk.settings = type(CACHED)(cache_s=0.04)
    desk.ask(late := Asker())
    await until(lambda: late.told)

    assert late.told == [Turn.GO]


@pytest.mark.parametrize("written", [b"", b"short", b"x" * 100])
async def test_what_somebody_else_wrote_is_no_answer(client: "redis.asyncio.Redis", written: bytes) -> None:
    desk = open_desk(client)
    await client.set(f"{PREFIX}:answer:{desk.key.hex()}", written)

    desk.ask(asker := Asker())
    await until(lambda: asker.told)

    assert asker.told == [Turn.GO]


async def test_an_answer_to_another_key_is_none_to_this(client: "redis.asyncio.Redis") -> None:
    desk = open_desk(client)
    other = desk.key_of("other")
    desk.settle(Asker(), ANSWER, other)
    await client.set(f"{PREFIX}:answer:{desk.key.hex()}", await find(client, other))

    desk.ask(asker := Asker())
    await until(lambda: asker.told)

    assert asker.told == [Turn.GO]


async def test_all_that_wait_are_answered_by_one_look(client: "redis.asyncio.Redis") -> None:
    writer, desk = open_desk(client), open_desk(client, BOTH)
    writer.settle(Asker(), ANSWER)
    await find(client, desk.key)
    askers = [Asker(), Asker(), Asker()]

    assert [desk.ask(one) for one in askers] == [Turn.WAIT] * 3
    desk.settle(askers[0], None, is_gone=True)
    await until(lambda: askers[1].told)

    assert [one.told for one in askers] == [[], [ANSWER], [ANSWER]]


async def test_a_look_that_everybody_left_tells_nobody(client: "redis.asyncio.Redis") -> None:
    desk = open_desk(client)
    desk.ask(asker := Asker())

    desk.settle(asker, None)
    await until(lambda: not desk.cache._store._tasks)

    assert asker.told == []


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_redis_that_fails_is_left_alone_for_a_while(hangs: bool) -> None:
    broken = Broken(hangs=hangs)
    desk = open_desk(broken)
    started_s = time.monotonic()

    desk.ask(asker := Asker())
    await until(lambda: asker.told)
    desk.settle(asker, ANSWER)

    assert asker.told == [Turn.GO]
    assert time.monotonic() - started_s < 0.5
    assert desk.ask(Asker(), desk.key_of("next")) is Turn.GO
    assert broken.calls == 1
    desk.now_s = time.monotonic() + 1.1
    assert desk.ask(Asker(), desk.key_of("next")) is Turn.WAIT
    await until(lambda: not desk.cache._store._tasks)


async def test_an_answer_that_cannot_be_written_is_counted() -> None:
    desk = open_desk(Broken())

    desk.settle(Asker(), ANSWER)
    await until(lambda: not desk.cache._store._tasks)
    desk.settle(Asker(), ANSWER)

    state = desk.cache.describe()
    assert (state["store_drops"], state["store_failures"]) == (2, 1)
    assert desk.ask(Asker()) == ANSWER


async def test_looks_at_once_are_bounded() -> None:
    desk = open_desk(Broken(hangs=True))

    turns = [desk.ask(Asker(), desk.key_of(str(number))) for number in range(100)]

    assert (turns.count(Turn.WAIT), turns.count(Turn.GO)) == (64, 36)
    await until(lambda: not desk.cache._store._tasks)


async def test_a_redis_that_went_away_meanwhile_answers_nothing() -> None:
    desk = open_desk(Broken())
    desk.ask(asker := Asker())

    desk.cache.attach(None, prefix="")
    await until(lambda: asker.told)

    assert asker.told == [Turn.GO]
    assert desk.ask(Asker()) is Turn.GO
    assert AnswerCache(secret="s").describe()["store_failures"] == 0
