"""What keys used: exact after a kill at any moment, and told until telemetry has booked it."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from pool.gateway import usage_book
from pool.gateway.totals import FILE_BYTES, SLOTS, Totals, field_of, read_run
from pool.gateway.usage_book import ENDED, UsageBook
from tests.pool.gateway.rig import KEY, Rig, chat_request, make_release, make_table
from tests.pool.gateway.test_delivery import PREFIX, client, valkey

__all__ = ["client", "valkey"]
ROOT = Path(__file__).parents[3]
DAY = datetime.date(2026, 3, 1).toordinal()
NAME = f"{PREFIX}:usage"
WRITER = """
import sys
from pathlib import Path
from pool.gateway.usage_book import UsageBook
book = UsageBook(Path(sys.argv[1]), "host:8080.0")
book.open()
for number in range(10**9):
    book.totals.add(739000, "k%d" % (number % 3), "m", 3, 2, 1)
    if number % 1000 == 999:
        print(number + 1, flush=True)
"""


def read_back(totals: Totals) -> dict[str, tuple[int, ...]]:
    run, entries = read_run(bytes(totals._memory))
    return {field_of(run, entry): entry[3] for entry in entries}


def start_writer(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)


def told(answer: dict[Any, Any]) -> dict[str, Any]:
    return {
        name.decode(): value.decode() if value == ENDED.encode() else json.loads(value)
        for name, value in answer.items()
    }


def test_totals_are_read_back_as_they_were_added_up() -> None:
    totals = Totals(bytearray(FILE_BYTES), "host:8080.0@1-ab")
    for _ in range(3):
        totals.add(DAY, "a" * 64, "m", 10, 4, 7)
    totals.add(DAY, "a" * 64, "other", 1, 0, 1)
    totals.add(DAY + 1, "a" * 64, "m", 1, 0, 1)

    key = "a" * 64
    assert read_back(totals) == {
        f"host:8080.0@1-ab|2026-03-01|{key}|m": (3, 30, 12, 21),
        f"host:8080.0@1-ab|2026-03-01|{key}|other": (1, 1, 0, 1),
        f"host:8080.0@1-ab|2026-03-02|{key}|m": (1, 1, 0, 1),
    }


def test_what_finds_no_slot_is_counted_without_its_key() -> None:
    totals = Totals(bytearray(FILE_BYTES), "r")
    for number in range(SLOTS + 500):
        totals.add(DAY, f"key-{number}", "m", 2, 1, 1)

    back = read_back(totals)

    assert len(back) == SLOTS
    assert totals.overflowed == 501
    assert back["r|2026-03-01||"] == (501, 1002, 501, 501)
    assert sum(numbers[0] for numbers in back.values()) == SLOTS + 500


def test_only_what_changed_is_taken_and_what_did_not_arrive_comes_again() -> None:
    totals = Totals(bytearray(FILE_BYTES), "r")
    totals.add(DAY, "a", "m", 1, 0, 1)
    totals.add(DAY, "b", "m", 1, 0, 1)
    taken = totals.take_changed(1)

    totals.mark(taken)

    assert {slot.key for slot in totals.take_changed(10)} == {"a", "b"}
    assert totals.take_changed(10) == []


@pytest.mark.parametrize("content", [b"", b"x" * FILE_BYTES, bytes(FILE_BYTES)])
def test_another_file_is_no_run(content: bytes) -> None:
    with pytest.raises(ValueError, match="the file has another"):
        read_run(content)


@pytest.mark.parametrize("_turn", range(3))
def test_fc57_a_kill_leaves_each_total_before_or_after_a_request(tmp_path: Path, _turn: int) -> None:
    writer = start_writer(tmp_path)
    assert writer.stdout is not None
    said = [int(writer.stdout.readline()) for _ in range(20 + 13 * _turn)][-1]
    writer.send_signal(signal.SIGKILL)
    said = max([said, *map(int, writer.communicate()[0].splitlines())])

    (path,) = (tmp_path / "usage").glob("*.bin")
    _, entries = read_run(path.read_bytes())

    requests = [numbers[0] for _, _, _, numbers in entries]
    assert said <= sum(requests) <= said + 1000
    assert max(requests) - min(requests) <= 1
    assert all(numbers == (n, 3 * n, 2 * n, n) for n, (*_, numbers) in zip(requests, entries, strict=True))


async def test_fc57_a_killed_run_is_told_by_the_next_process_and_goes_when_it_is_booked(
    tmp_path: Path, client: redis.asyncio.Redis
) -> None:
    writer = await asyncio.to_thread(start_writer, tmp_path)
    assert writer.stdout is not None
    await asyncio.to_thread(writer.stdout.readline)
    book = UsageBook(tmp_path, "host:8080.0")
    book.open()
    await book.tell(client, PREFIX, 0.0)
    assert await client.hgetall(NAME) == {}  # It lives: its file is its own.
    writer.kill()
    await asyncio.to_thread(writer.communicate)

    await book.tell(client, PREFIX, 20.0)
    assert ENDED not in told(await client.hgetall(NAME)).values()
    await book.tell(client, PREFIX, 30.0)

    found = told(await client.hgetall(NAME))
    (run,) = [name for name, value in found.items() if value == ENDED]
    totals = {name: value for name, value in found.items() if value != ENDED}
    assert set(totals) == {f"{run}|2024-04-24|k{number}|m" for number in range(3)}
    assert all(value["prompt_tokens"] == 3 * value["requests"] for value in totals.values())

    await client.flushall()  # Redis lost it, and a new connection says so.
    other = redis.asyncio.Redis.from_pool(client.connection_pool)
    await book.tell(other, PREFIX, 40.0)
    await book.tell(other, PREFIX, 50.0)
    assert told(await client.hgetall(NAME)) == found
    assert len(list((tmp_path / "usage").glob("*.bin"))) == 2

    await client.hdel(NAME, *found)  # Telemetry has booked it.
    await book.tell(other, PREFIX, 60.0)
    assert len(list((tmp_path / "usage").glob("*.bin"))) == 1
    book.close()


async def test_a_day_is_a_run(
    tmp_path: Path, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = UsageBook(tmp_path, "host:8080.0")
    book.open()
    first = book.totals.run
    book.totals.add(DAY, "a", "m", 5, 0, 1)
    monkeypatch.setattr(usage_book, "_day_of", lambda wall_s: 1)

    await book.tell(client, PREFIX, 0.0)
    await book.tell(client, PREFIX, 10.0)

    assert book.totals.run != first
    found = told(await client.hgetall(NAME))
    assert found[first] == ENDED
    assert found[f"{first}|2026-03-01|a|m"]["prompt_tokens"] == 5
    book.close()


async def test_without_a_disk_usage_is_still_told(tmp_path: Path, client: redis.asyncio.Redis) -> None:
    (tmp_path / "usage").write_text("no folder")
    book = UsageBook(tmp_path, "host:8080.0")
    book.open()
    book.totals.add(DAY, "a", "m", 5, 0, 1)

    await book.tell(client, PREFIX, 0.0)

    assert not book.is_on_disk
    assert len(await client.hgetall(NAME)) == 1
    book.close()


async def test_a_connection_that_breaks_loses_nothing(tmp_path: Path, client: redis.asyncio.Redis) -> None:
    book = UsageBook(tmp_path, "host:8080.0")
    book.open()
    book.totals.add(DAY, "a", "m", 5, 0, 1)
    gone = redis.asyncio.Redis(unix_socket_path=str(tmp_path / "nobody.sock"))
    with pytest.raises(redis.exceptions.ConnectionError):
        await book.tell(gone, PREFIX, 0.0)

    await book.tell(client, PREFIX, 1.0)

    assert len(await client.hgetall(NAME)) == 1
    book.close()
    await gone.aclose()


async def test_a_key_uses_what_its_answers_held(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())))
    await rig.ask()
    await rig.ask(stream=True)
    await rig.ask(b"ERR:400 please")
    await rig.ask(key="sk-sluice-unknown")

    ((_, key, model, numbers),) = [slot.entry() for slot in rig.gateway.plane.usage.totals.take_changed(10)]

    facts = [fact for fact in rig.gateway.plane.facts.take(10) if fact["status"] == 200]
    assert (key[:12], model) == (facts[0]["key"], "m")
    assert numbers == (
        2,
        sum(fact["prompt_tokens"] for fact in facts),
        sum(fact["cached_tokens"] for fact in facts),
        sum(fact["output_tokens"] for fact in facts),
    )


async def test_who_leaves_has_used_what_came(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine(gap_s=0.01, chunks=1000))))
    leaver = await rig.connect()
    leaver.send(chat_request(stream=True, key=KEY))
    await rig.until(lambda: rig.engines["r1"].tokens > 5)
    leaver.abort()
    await rig.until(lambda: not rig.gateway.plane.exchanges)

    ((*_, numbers),) = [slot.entry() for slot in rig.gateway.plane.usage.totals.take_changed(10)]

    assert numbers[0] == 1
    assert numbers[1] > 0
    assert 3 <= numbers[3] <= rig.engines["r1"].tokens + 2


async def test_a_stop_that_was_asked_for_tells_the_rest(
    rig: Rig, valkey: Any, client: redis.asyncio.Redis
) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())), redis_url=valkey.url)
    await rig.until(lambda: rig.gateway._delivery is not None and rig.gateway._delivery._client is not None)
    await rig.ask()

    await rig.gateways.pop().stop()

    assert len(await client.hgetall(NAME)) == 1
    assert await client.xlen(f"{PREFIX}:facts") == 1
    assert os.listdir(rig.folder / "gateway" / "usage")
