"""FC-56: without the opt-in of its key not a word of a request is anywhere; with it, masked, in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis.asyncio

from launcher.servers import RunningServer
from pool.gateway.captures import STREAM_LENGTH, Capture, build_entries
from pool.telemetry.facts import fold
from tests.pool.gateway.rig import DEADLINE_S, KEYS, Rig, chat_body, chat_request, make_release, make_table
from tests.pool.gateway.test_delivery import PREFIX, client, valkey

__all__ = ["client", "valkey"]
MARK = "zanzibar-quartz-marker"
OPTED_IN = tuple(replace(key, capture_ratio=1.0) for key in KEYS)
MAIL = "write to jane.doe@example.org or call +49 170 1234567"


async def succeed(rig: Rig) -> None:
    assert (await rig.ask(chat_body(MARK))).status == 200


async def stream(rig: Rig) -> None:
    assert (await rig.ask(chat_body(MARK, stream=True))).events[-1] == "[DONE]"


async def be_refused_by_the_engine(rig: Rig) -> None:
    assert (await rig.ask(chat_body(f"ERR:400 {MARK}"))).status == 400


async def be_refused_here(rig: Rig) -> None:
    assert (await rig.ask(chat_body(f"{MARK} " * 20_000))).error["code"] == "context_length_exceeded"
    assert (await rig.ask(chat_body(MARK) | {"model": MARK})).status == 404
    assert (await rig.ask(b'{"model": "m", "messages": "' + MARK.encode())).status == 400


async def fail(rig: Rig) -> None:
    assert (await rig.ask(chat_body(f"ERR:500 {MARK}"))).status >= 500


async def time_out(rig: Rig) -> None:
    rig.engines["r1"].switches.hang_after = len(rig.engines["r1"].calls)
    assert (await rig.ask(chat_body(MARK, stream=True))).status == 504


async def leave(rig: Rig) -> None:
    rig.engines["r1"].switches.gap_s = 0.05
    leaver = await rig.connect()
    leaver.send(chat_request(chat_body(MARK, stream=True)))
    await rig.until(lambda: rig.engines["r1"].tokens > 2)
    leaver.abort()


WAYS = [succeed, stream, be_refused_by_the_engine, be_refused_here, fail, time_out, leave]


async def serve(rig: Rig, valkey: RunningServer, *, keys: Any = KEYS) -> None:
    replica = await rig.start_engine(text=f"You said {MARK} . {MAIL} .")
    lane = {"first_byte_timeout_s": 0.3}
    table = make_table(make_release(1, replica), lane=lane, keys=keys)
    await rig.serve(table, redis_url=valkey.url)
    await rig.until(lambda: rig.gateway._delivery is not None and rig.gateway._delivery._client is not None)


async def read_entries(client: Any, name: str) -> list[Any]:
    """Of a stream, once there are some."""
    async with asyncio.timeout(DEADLINE_S):
        while not (entries := await client.xrange(f"{PREFIX}:{name}")):  # noqa: ASYNC110  Redis has no event of it
            await asyncio.sleep(0.02)
    return [orjson.loads(entry[b"b"]) for _, entry in entries]


async def read_all(client: redis.asyncio.Redis) -> bytes:
    """All that Redis holds."""
    return b"".join([name + (await client.dump(name) or b"") async for name in client.scan_iter()])


def read_files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
async def test_fc56_no_word_of_a_request_is_kept(
    rig: Rig,
    valkey: RunningServer,
    client: redis.asyncio.Redis,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    way: Callable[[Rig], Any],
) -> None:
    caplog.set_level(logging.DEBUG)
    await client.config_set("stream-node-max-entries", 1)
    await serve(rig, valkey)

    await way(rig)

    await rig.until(lambda: not rig.gateway.plane.exchanges)
    await rig.until(lambda: not len(rig.gateway.plane.facts))
    facts = [fact for batch in await read_entries(client, "facts") for fact in batch]
    records = [vars(record) for record in fold(facts).records]
    metrics = rig.gateway.plane.metrics.render()
    state = orjson.dumps(rig.gateway.plane.metrics.snapshot().decode())
    kept = [
        await read_all(client), orjson.dumps(facts), repr(records).encode(), read_files(rig.folder),
        caplog.text.encode(), "".join(capfd.readouterr()).encode(), metrics, state,
    ]  # fmt: skip
    assert [part for part in kept if MARK.encode() in part] == []
    assert facts
    assert not await client.exists(f"{PREFIX}:captures")


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_key_that_opted_in_has_its_texts_masked(
    rig: Rig, valkey: RunningServer, client: redis.asyncio.Redis, is_stream: bool
) -> None:
    await serve(rig, valkey, keys=OPTED_IN)
    await rig.ask(chat_body(f"{MARK}: {MAIL}, card 4111 1111 1111 1111", stream=is_stream))

    (kept,) = await read_entries(client, "captures")

    assert kept["input"] == [["user", f"{MARK}: write to [e-mail] or call [number], card [number]"]]
    assert kept["output"] == f"You said {MARK} . write to [e-mail] or call [number] . "
    assert (kept["status"], kept["outcome"], kept["model"]) == (200, "ok", "m")
    ((fact,),) = await read_entries(client, "facts")
    assert kept["request_id"] == fact["request_id"]
    assert MARK not in orjson.dumps(fact).decode()


async def test_only_a_share_is_kept(rig: Rig) -> None:
    keys = tuple(replace(key, capture_ratio=0.5) for key in KEYS)
    await rig.serve(make_table(make_release(1, await rig.start_engine()), keys=keys))

    await asyncio.gather(*(rig.ask() for _ in range(60)))

    assert 5 < len(rig.gateway.plane.captures) < 55


async def test_texts_that_nobody_takes_are_bounded(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine()), keys=OPTED_IN))

    for _ in range(7):
        await asyncio.gather(*(rig.ask() for _ in range(10)))

    assert (len(rig.gateway.plane.captures), rig.gateway.plane.captures.dropped) == (64, 6)
    assert STREAM_LENGTH <= 1000


async def test_what_is_too_large_says_so(
    rig: Rig, valkey: RunningServer, client: redis.asyncio.Redis
) -> None:
    await serve(rig, valkey, keys=OPTED_IN)
    await rig.ask(chat_body(metadata={"x": "y" * 70_000}))

    (kept,) = await read_entries(client, "captures")

    assert kept["input"] == [["", "[not kept: the body was too large]"]]
    assert kept["output"].startswith("You said")


def test_an_answer_without_its_end_says_so() -> None:
    fact = dict.fromkeys(("request_id", "at", "model", "key", "status", "outcome"), 0)

    (entry,) = build_entries([Capture(fact, {"prompt": ["a", [1, 2], {"type": "image_url"}]}, None)])

    kept = orjson.loads(entry)
    assert kept["input"] == [["prompt", "a\n[tokens]\n[image_url]"]]
    assert kept["output"].startswith("[not kept")
