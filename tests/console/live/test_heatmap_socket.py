"""The live heatmap's socket, from Redis' channel and the database to the browser's frames."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection

from console.live import consumers
from console.live.heatmap_frames import CHANGES, HEAD_BYTES, WHOLE
from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import RoutingState
from pool.telemetry.store import add_cells
from tests.console.live.conftest import Open, Socket, make_session, read_close

pytestmark = pytest.mark.usefixtures("seeded")
PATH = "/live/latency/model-0/"


def series(replica: str) -> SeriesKey:
    return SeriesKey("model-0", release=1, replica=replica, lane="short", tier="standard")


def store(count: int, *, ago_s: int, replica: str = "a") -> None:
    at = datetime.fromtimestamp(int(datetime.now(UTC).timestamp()) - ago_s, tz=UTC)
    cell = Cell(counts={"requests": count}, stages={"ttft": Histogram.of([0.1] * count)})
    add_cells({(series(replica), at): cell})


def publish(seq: int, count: int, *, replica: str = "b", body: Any = None) -> int:
    """How many listen."""
    histogram, key = Histogram.of([0.1] * count), series(replica)
    content = {"ttft": [histogram.sum_s, [list(pair) for pair in histogram.counts.items()]]}
    names = [getattr(key, name) for name in key.__slots__]
    at_s = int(datetime.now(UTC).timestamp()) - 1
    cells = [[at_s, names, {"counts": {}, "sums": {}, "outcomes": {}, "stages": content}]]
    message = {"epoch": "one", "seq": seq, "cells": cells, "gauges": []} if body is None else body
    channel = f"sluice:{RoutingState.objects.get(pk=1).installation}:open"
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        return int(client.publish(channel, json.dumps(message)))


async def publish_when_heard(seq: int, count: int) -> None:
    async with asyncio.timeout(8):
        # Redis tells nobody that somebody has begun to listen.
        while not await database_sync_to_async(lambda: publish(seq, count))():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def read_frame(socket: Socket, holds: Callable[[int, int], bool]) -> bytes:
    """The next frame whose kind and samples of the last minute are as wished."""
    for _ in range(60):
        message = await socket.receive()
        assert message["type"] == "websocket.send", message
        frame: bytes = message["bytes"]
        if holds(frame[1], struct.unpack_from("<I", frame, 24)[0]):
            return frame
    raise AssertionError("no such frame came")


@pytest.fixture(autouse=True)
async def _all_ends() -> AsyncIterator[None]:
    """What a test left open ends before its loop does: a cancellation can be lost in a library, so it is repeated."""
    yield
    for _ in range(100):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=0.1)


async def test_stored_seconds_come_first_then_open_ones(open_socket: Open) -> None:
    await database_sync_to_async(lambda: store(3, ago_s=20))()
    socket = open_socket(PATH, await make_session())
    assert await socket.connect()
    whole = await read_frame(socket, lambda kind, samples: kind == WHOLE and samples == 3)

    await publish_when_heard(1, 5)
    changes = await read_frame(socket, lambda kind, samples: kind == CHANGES and samples == 8)

    assert struct.unpack_from("<I", whole, 20)[0] == 1
    assert struct.unpack_from("<I", changes, 20)[0] == 1
    assert len(changes) > HEAD_BYTES
    await socket.disconnect()


async def test_nonsense_on_the_channel_harms_nobody(open_socket: Open) -> None:
    await database_sync_to_async(lambda: store(3, ago_s=20))()
    socket = open_socket(PATH, await make_session())
    await socket.connect()
    await read_frame(socket, lambda kind, samples: kind == WHOLE)
    await publish_when_heard(1, 1)

    for body in ({"epoch": "x", "seq": "y"}, {"epoch": "x", "seq": 1, "cells": [[1, ["a"], {}]]}, "text"):
        await database_sync_to_async(lambda body=body: publish(1, 1, body=body))()
    await database_sync_to_async(lambda: publish(2, 4))()

    assert await read_frame(socket, lambda kind, samples: samples == 7)
    await socket.disconnect()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/live/latency/nothing/", 4404),
        (f"{PATH}?stage=none", 4400),
        (f"{PATH}?release=one", 4400),
        (f"{PATH}?lane={'x' * 64}", 4400),
    ],
)
async def test_what_cannot_be_shown_is_refused(open_socket: Open, path: str, code: int) -> None:
    socket = open_socket(path, await make_session())
    await socket.connect()

    assert await read_close(socket) == code


async def test_nobody_is_told_to_sign_in(open_socket: Open) -> None:
    socket = open_socket(PATH)
    await socket.connect()

    assert await read_close(socket) == 4401


async def test_a_foreign_origin_is_refused(open_socket: Open) -> None:
    """FC-53"""
    socket = open_socket(PATH, await make_session("admin"), origin="https://evil.example")

    assert not await socket.connect()


async def test_a_lost_right_closes_the_socket(open_socket: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-54"""
    monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
    monkeypatch.setattr(consumers, "BEAT_S", 0.1)
    socket = open_socket(PATH, await make_session())
    await socket.connect()
    await read_frame(socket, lambda kind, samples: kind == WHOLE)

    await database_sync_to_async(lambda: Session.objects.all().delete())()

    assert await read_close(socket) == 4401


async def test_fifty_sockets_hold_no_connection_each(open_socket: Open) -> None:
    """FC-58: their rights are asked together, their window is read once."""
    session = await make_session()
    sockets = [open_socket(PATH, session) for _ in range(50)]
    for socket in sockets:
        await socket.connect()
    for socket in sockets:
        await read_frame(socket, lambda kind, samples: kind == WHOLE)

    held = await database_sync_to_async(_count_connections)()

    options: Any = settings.DATABASES["default"]["OPTIONS"]
    assert held <= options["pool"]["max_size"]
    for socket in sockets:
        await socket.disconnect()


def _count_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
