"""The socket of block maps: the newest for each viewer, and words where there is none (FC-54, FC-64, FC-65)."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.sessions.models import Session

from console.live import block_maps, consumers
from console.live.block_maps import BlockMaps, MapWatch, RedisMaps
from pool.domain.block_map import NOBODY, BlockOwner, pack_block_map
from pool.models import Replica
from tests.console.live.conftest import Open, make_session, read_close

LIMIT_S = 10.0
HOSTILE = '<img src=x onerror="alert(1)">'


def packed(*, used: int = 2, age_s: float = 0.2, name: str = "req-1") -> bytes:
    states = b"\x00" + b"\x03" * used + b"\x01"
    owners = NOBODY.to_bytes(2, "little") + b"\x00\x00" * used + NOBODY.to_bytes(2, "little")
    return pack_block_map(
        at_ms=1,
        age_s=age_s,
        block_tokens=16,
        states=states,
        owners=owners,
        requests=(BlockOwner(name, used, 20, 12),),
        free_runs={1: 1},
    )


class FakeMaps:
    """Answers what it is told to; notes what was asked."""

    def __init__(self, **maps: bytes) -> None:
        self.maps: dict[str, bytes] = maps
        self.absence = ""
        self.failure: Exception | None = None
        self.asked: list[list[str]] = []
        self.is_closed = False
        self.segments: bytes | None = None
        self.wishes: list[str] = []

    async def read_maps(self, replicas: Sequence[str]) -> list[bytes | None]:
        self.asked.append(list(replicas))
        if self.failure is not None:
            raise self.failure
        return [self.maps.get(replica) for replica in replicas]

    async def read_absence(self, replica: str) -> str:
        return self.absence

    async def read_segments(self, replica: str, wish: str) -> bytes | None:
        self.wishes.append(wish)
        return self.segments

    async def close(self) -> None:
        self.is_closed = True


def make_maps(source: FakeMaps) -> BlockMaps:
    async def open_source() -> FakeMaps:
        return source

    return BlockMaps(open_source, every_s=0.01)


async def read_frame(watch: MapWatch, kind: str) -> dict[str, Any]:
    """The next frame of this kind, a map's head among them."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            await watch.wait(timeout_s=0.05)
            head = head_of(watch.take())
            if kind in (head["type"], head.get("state")):
                return head


def head_of(frame: str | bytes) -> dict[str, Any]:
    if isinstance(frame, str):
        found: dict[str, Any] = json.loads(frame)
        return found
    (length,) = struct.unpack_from("<I", frame)
    head: dict[str, Any] = json.loads(frame[4 : 4 + length])
    return head | {"body": frame[4 + length :]}


async def test_a_viewer_is_told_to_wait_and_gets_the_map() -> None:
    source = FakeMaps()
    watch = make_maps(source).subscribe("r1")
    assert head_of(watch.take()) == {"type": "state", "state": "waiting", "reason": ""}

    source.maps["r1"] = packed()
    head = await read_frame(watch, "map")

    assert (head["blocks"], head["block_tokens"], head["stale"]) == (4, 16, False)
    assert head["requests"] == [["req-1", 2, 20, 12]]
    assert dict(zip(head["names"], head["counts"], strict=True)) == {
        "null": 1, "free": 1, "reusable": 0, "used": 2, "shared": 0,
    }  # fmt: skip
    states, owners = head["lengths"]
    assert zlib.decompress(head["body"][:states]) == b"\x00\x03\x03\x01"
    assert len(zlib.decompress(head["body"][states : states + owners])) == 8
    watch.close()


async def test_a_slow_viewer_gets_the_newest_and_no_queue() -> None:
    """FC-65"""
    source = FakeMaps(r1=packed(used=1))
    maps = make_maps(source)
    slow, quick = maps.subscribe("r1"), maps.subscribe("r1")
    for used in (2, 3, 4):
        source.maps["r1"] = packed(used=used)
        while (await read_frame(quick, "map"))["counts"][3] != used:
            pass

    assert (await read_frame(slow, "map"))["counts"][3] == 4
    assert {replica for asked in source.asked for replica in asked} == {"r1"}
    slow.close()
    quick.close()


async def test_nothing_new_is_a_beat_and_a_gap_the_whole() -> None:
    """FC-64"""
    watch = make_maps(FakeMaps(r1=packed())).subscribe("r1")
    watch._topic.frame, watch._topic.seq = "{}", 7
    watch.take()

    assert json.loads(watch.take()) == {"type": "beat", "seq": 7}
    watch.ask_snapshot()
    assert watch.take() == "{}"
    watch.close()


async def test_a_hung_engines_map_is_stale() -> None:
    watch = make_maps(FakeMaps(r1=packed(age_s=9.0))).subscribe("r1")

    assert (await read_frame(watch, "map"))["stale"] is True
    watch.close()


async def test_an_absent_map_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_maps, "PATIENCE_S", 0.03)
    source = FakeMaps()
    source.absence = "The plug-in does not know this engine."
    watch = make_maps(source).subscribe("r1")

    assert (await read_frame(watch, "missing"))["reason"] == "The plug-in does not know this engine."
    watch.close()


async def test_what_cannot_be_read_is_told() -> None:
    watch = make_maps(FakeMaps(r1=b"{}")).subscribe("r1")

    assert "cannot be read" in (await read_frame(watch, "missing"))["reason"]
    watch.close()


async def test_without_redis_viewers_are_told_and_it_comes_back() -> None:
    source = FakeMaps(r1=packed())
    source.failure = redis.ConnectionError("down")
    watch = make_maps(source).subscribe("r1")
    await read_frame(watch, "unreachable")

    source.failure = None

    assert (await read_frame(watch, "map"))["blocks"] == 4
    watch.close()


async def test_without_viewers_nothing_is_asked() -> None:
    source = FakeMaps(r1=packed())
    maps = make_maps(source)
    watch = maps.subscribe("r1")
    await read_frame(watch, "map")

    watch.close()
    assert maps._task is not None
    async with asyncio.timeout(LIMIT_S):
        await maps._task

    assert (maps._topics, source.is_closed) == ({}, True)


async def test_segments_are_asked_for_once_and_told_to_all() -> None:
    source = FakeMaps(r1=packed())
    maps = make_maps(source)
    one, other = maps.subscribe("r1"), maps.subscribe("r1")
    await read_frame(one, "map")
    assert source.wishes == []
    one.ask_segments()
    other.ask_segments()
    blocks = [[4, "active_allocated"], [1, "inactive"]]
    rows = [{"total_size": size, "kind": "large", "blocks": blocks} for size in (5, 9)]
    source.segments = json.dumps({"segments": rows, "left_out": 2}).encode()

    for viewer in (one, other):
        found = await read_frame(viewer, "segments")
        assert found["segments"] == [[9, "large", [[4, 1], [1, 0]]], [5, "large", [[4, 1], [1, 0]]]]
        assert found["more"] == 2

    assert len(set(source.wishes)) == 1
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b'{"absent":"no CUDA"}', "no CUDA"), (b"[", ""), (b'{"segments":[{}]}', ""), (b"7", "")],
)
async def test_absent_segments_are_explained(content: bytes, reason: str) -> None:
    source = FakeMaps(r1=packed())
    source.segments = content
    watch = make_maps(source).subscribe("r1")
    watch.ask_segments()

    found = await read_frame(watch, "segments")

    assert (found["segments"], found["absent"]) == ([], reason)
    watch.close()


async def test_an_idle_engine_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_maps, "SEGMENTS_PATIENCE_S", 0.03)
    watch = make_maps(FakeMaps(r1=packed())).subscribe("r1")
    watch.ask_segments()

    assert (await read_frame(watch, "segments"))["segments"] == []
    assert watch._topic.wish == ""
    watch.close()


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize(("group", "asked"), [("viewer", False), ("operator", True)])
async def test_only_who_may_operate_asks_for_segments(open_socket: Open, group: str, asked: bool) -> None:
    replica = await database_sync_to_async(lambda: Replica.objects.get().pk)()
    socket = open_socket(f"/live/blocks/{replica}/", await make_session(group))
    await socket.connect()
    await socket.receive()
    topic = block_maps.find_block_maps()._topics[replica]

    await socket.send_text(block_maps.ASK_SEGMENTS)
    await socket.disconnect()

    assert bool(topic.wish) is asked


async def test_redis_is_told_who_is_watched() -> None:
    source = RedisMaps(settings.REDIS_URL, "i-blocks")
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set("sluice:i-blocks:blocks:r2", b"map", ex=60)
        states = {
            "r1.1": {"missing": "old"},
            "r1.12": {"missing": "no plug-in"},
            "r11.13": {"missing": "other"},
        }
        client.hset(
            "sluice:i-blocks:replicas", mapping={name: json.dumps(one) for name, one in states.items()}
        )
        client.expire("sluice:i-blocks:replicas", 60)

        assert await source.read_maps(["r1", "r2"]) == [None, b"map"]
        assert await source.read_absence("r1") == "no plug-in"
        assert await source.read_absence("r9") == ""

        client.set("sluice:i-blocks:segments:r1", b'{"wish":"7"}', ex=60)
        assert await source.read_segments("r1", "7") == b'{"wish":"7"}'
        assert await source.read_segments("r1", "8") is None
        assert client.get("sluice:i-blocks:segments-wish:r1") == b"8"
        assert 0 < int(client.ttl("sluice:i-blocks:watch:r1")) <= block_maps.WATCH_S
    await source.close()


@pytest.mark.usefixtures("seeded")
async def test_the_socket_needs_a_session_and_a_replica(open_socket: Open) -> None:
    replica = await database_sync_to_async(lambda: Replica.objects.get().pk)()
    stranger = open_socket(f"/live/blocks/{replica}/")
    await stranger.connect()
    assert await read_close(stranger) == consumers.SIGNED_OUT

    unknown = open_socket("/live/blocks/nosuch/", await make_session())
    await unknown.connect()
    assert await read_close(unknown) == 4404


@pytest.mark.usefixtures("seeded")
async def test_a_socket_ends_with_its_session(open_socket: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-54"""
    monkeypatch.setattr(consumers, "RECHECK_S", 0.0)
    replica = await database_sync_to_async(lambda: Replica.objects.get().pk)()
    socket = open_socket(f"/live/blocks/{replica}/", await make_session())
    await socket.connect()
    assert json.loads((await socket.receive())["text"])["state"] == "waiting"

    await database_sync_to_async(Session.objects.all().delete)()

    assert await read_close(socket) == consumers.SIGNED_OUT


async def test_a_hostile_name_is_data_and_nothing_else() -> None:
    """FC-55"""
    watch = make_maps(FakeMaps(r1=packed(name=HOSTILE))).subscribe("r1")

    assert (await read_frame(watch, "map"))["requests"][0][0] == HOSTILE
    watch.close()
