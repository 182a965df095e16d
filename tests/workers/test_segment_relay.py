from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from django.conf import settings

from workers.engine_ring import RingReader
from workers.plugin.sluice_engine.ring import SEGMENTS_NAME
from workers.segment_relay import SegmentRelay

PREFIX = "sluice:i-segments:"
WISH, ANSWER = f"{PREFIX}segments-wish:r1", f"{PREFIX}segments:r1"


class FakeReader:
    def __init__(self) -> None:
        self.asked = 0

    def ask_for_segments(self) -> None:
        self.asked += 1


@pytest.fixture
def client() -> Iterator[Any]:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        yield client
        client.delete(WISH, ANSWER)


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


def follow(relay: SegmentRelay, reader: FakeReader, folder: Path) -> None:
    relay.follow(PREFIX, {"r1": (cast(RingReader, reader), str(folder))})


def write(folder: Path, content: object) -> None:
    """As the plug-in does: whole, in the old one's place."""
    beside = folder / "beside"
    beside.write_text(json.dumps(content))
    os.rename(beside, folder / SEGMENTS_NAME)


def test_without_a_wish_no_engine_is_asked(client: Any, reader: FakeReader, tmp_path: Path) -> None:
    write(tmp_path, {"segments": []})

    follow(SegmentRelay(settings.REDIS_URL), reader, tmp_path)

    assert (reader.asked, client.get(ANSWER)) == (0, None)


def test_a_wish_is_asked_once_and_answered_by_what_is_new(
    client: Any, reader: FakeReader, tmp_path: Path
) -> None:
    relay = SegmentRelay(settings.REDIS_URL)
    write(tmp_path, {"segments": [{"total_size": 1}], "left_out": 0})
    client.set(WISH, "7", ex=60)
    follow(relay, reader, tmp_path)
    follow(relay, reader, tmp_path)
    assert (reader.asked, client.get(ANSWER)) == (1, None)

    write(tmp_path, {"segments": [{"total_size": 2}], "left_out": 3, "at_ns": 5})
    follow(relay, reader, tmp_path)

    assert json.loads(client.get(ANSWER)) == {"wish": "7", "segments": [{"total_size": 2}], "left_out": 3}
    client.set(WISH, "8", ex=60)
    follow(relay, reader, tmp_path)
    assert reader.asked == 2


@pytest.mark.parametrize("content", ["[", "[1]", "7"])
def test_an_answer_that_cannot_be_read_says_so(
    client: Any, reader: FakeReader, tmp_path: Path, content: str
) -> None:
    relay = SegmentRelay(settings.REDIS_URL)
    client.set(WISH, "7", ex=60)
    follow(relay, reader, tmp_path)
    (tmp_path / SEGMENTS_NAME).write_text(content)

    follow(relay, reader, tmp_path)

    assert json.loads(client.get(ANSWER)) == {"wish": "7", "absent": "The engine's answer cannot be read."}


def test_without_redis_nothing_happens(reader: FakeReader, tmp_path: Path) -> None:
    follow(SegmentRelay("redis://127.0.0.1:1/0"), reader, tmp_path)

    assert reader.asked == 0
