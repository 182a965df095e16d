"""The feed of live heatmaps: one reading and one encoding for all who watch, states told, slow readers free of cost."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from django.db import OperationalError

from console.live import heatmap_feed
from console.live.heatmap_feed import HeatmapFeed
from console.live.heatmap_frames import BEAT, CHANGES, HEAD_BYTES, WHOLE, State
from console.live.heatmap_source import Source
from console.live.heatmap_topic import HeatmapWatch
from console.live.heatmap_window import Wanted
from console.live.limits import TooManyViews
from console.live.telemetry_channel import Listener, OpenCell
from pool.domain.cells import SeriesKey
from pool.domain.histogram import Histogram
from pool.services.errors import not_found

LIMIT_S = 5.0
WANTED = Wanted(model="qwen")
KEY = SeriesKey("qwen", release=1, replica="a")


class Stored(Source):
    """The database in the test's hands."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, SeriesKey, Histogram]] = []
        self.failure: Exception | None = None
        self.reads = 0
        self.unread_since_s: float | None = None

    async def read_seconds(self, wanted: Wanted, start_s: float, end_s: float) -> Any:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return [row for row in self.rows if start_s <= row[0] < end_s]

    async def find_unread_since(self, now_s: float) -> float | None:
        return self.unread_since_s


class Channel:
    """Redis in the test's hands."""

    listener: Listener | None = None
    is_up = True

    async def listen(self, listener: Listener) -> None:
        self.listener = listener
        listener.set_up(self.is_up)
        await asyncio.Event().wait()


class Clock:
    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heatmap_feed, "SHORTEST_PAUSE_S", 0.01)
    monkeypatch.setattr(heatmap_feed, "POLL_S", 0.02)
    monkeypatch.setattr(heatmap_feed, "CHECK_S", 0.0)
    monkeypatch.setattr(heatmap_feed, "REPAIR_AFTER_S", 0.0)
    monkeypatch.setattr(heatmap_feed, "RETRY_S", 0.0)


@pytest.fixture
def stored(clock: Clock) -> Stored:
    """One second of before, outside of what is summed up."""
    stored = Stored()
    stored.rows = [(int(clock.now_s) - 100, KEY, Histogram.of([0.1] * 3))]
    return stored


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def feed(stored: Stored, channel: Channel, clock: Clock) -> AsyncIterator[HeatmapFeed]:
    feed = HeatmapFeed(source=stored, listen=channel.listen, clock=clock)
    yield feed
    for topic in list(feed._topics.values()):
        for watch in list(topic.watches):
            watch.close()
    if feed._task is not None:
        await asyncio.wait_for(feed._task, LIMIT_S)


class Head:
    def __init__(self, frame: bytes) -> None:
        values = struct.unpack("<BBBxHHHxxIIIIddfff8x", frame[:HEAD_BYTES])
        self.kind, self.state = values[1:3]
        self.seq, self.before, self.columns, self.samples = values[6:10]
        self.since_s = values[11]


async def read_until(watch: HeatmapWatch, holds: Callable[[Head], bool]) -> Head:
    async with asyncio.timeout(LIMIT_S):
        while True:
            await watch.wait(timeout_s=0.05)
            head = Head(watch.take())
            if holds(head):
                return head


def open_cell(clock: Clock, seconds: float, count: int, *, key: SeriesKey = KEY, ago_s: int = 2) -> OpenCell:
    histogram = Histogram.of([seconds] * count)
    content = [histogram.sum_s, [list(pair) for pair in histogram.counts.items()]]
    return OpenCell(int(clock.now_s) - ago_s, key, {"ttft": content})


async def test_the_whole_comes_first_then_what_changed(
    feed: HeatmapFeed, stored: Stored, channel: Channel, clock: Clock
) -> None:
    watch = feed.subscribe(WANTED)
    whole = await read_until(watch, lambda head: head.kind == WHOLE)

    assert channel.listener is not None
    channel.listener.take_cells([open_cell(clock, 0.1, 2), open_cell(clock, 0.1, 1, key=SeriesKey("other"))])
    changes = await read_until(watch, lambda head: head.kind == CHANGES)

    assert (whole.columns, whole.state) == (1, State.LIVE)
    assert (changes.before, changes.columns, changes.samples) == (whole.seq, 1, 2)


async def test_a_slow_reader_gets_all_that_it_missed_in_one_frame(
    feed: HeatmapFeed, channel: Channel, clock: Clock
) -> None:
    """FC-65: its place is a number; nothing waits for it."""
    slow, quick = feed.subscribe(WANTED), feed.subscribe(WANTED)
    await read_until(slow, lambda head: head.kind == WHOLE)
    await read_until(quick, lambda head: head.kind == WHOLE)

    for number in range(1, 6):
        assert channel.listener is not None
        channel.listener.take_cells(
            [open_cell(clock, 0.1, number), open_cell(clock, 0.1, 1, ago_s=2 + number)]
        )
        await read_until(quick, lambda head: head.kind == CHANGES)
    missed = Head(slow.take())

    assert (missed.kind, missed.columns) == (CHANGES, 6)
    assert Head(slow.take()).kind == BEAT


async def test_all_who_are_equally_far_get_the_same_bytes(feed: HeatmapFeed, stored: Stored) -> None:
    watches = [feed.subscribe(WANTED) for _ in range(200)]
    await read_until(watches[0], lambda head: head.kind == WHOLE)

    frames = {id(watch.take()) for watch in watches[1:]}

    assert len(frames) == 1
    assert stored.reads <= 3


async def test_after_a_gap_the_whole_comes_again(feed: HeatmapFeed, channel: Channel, clock: Clock) -> None:
    """FC-64"""
    watch = feed.subscribe(WANTED)
    await read_until(watch, lambda head: head.kind == WHOLE)
    assert channel.listener is not None
    channel.listener.take_cells([open_cell(clock, 0.1, 2)])
    await read_until(watch, lambda head: head.kind == CHANGES)

    watch.ask_snapshot()

    assert (await read_until(watch, lambda head: head.kind == WHOLE)).columns == 2


async def test_lost_messages_are_made_good_from_the_database(
    feed: HeatmapFeed, stored: Stored, channel: Channel, clock: Clock
) -> None:
    """FC-64: a burst of 500 of which none came: the page converges by itself."""
    watch = feed.subscribe(WANTED)
    await read_until(watch, lambda head: head.kind == WHOLE)

    stored.rows = [(int(clock.now_s) - 2, KEY, Histogram.of([0.1] * 500))]
    assert channel.listener is not None
    channel.listener.notice_gap()
    clock.now_s += 1.0

    assert (await read_until(watch, lambda head: head.samples == 500)).kind == CHANGES


async def test_a_silent_redis_is_said_and_the_database_polled(
    feed: HeatmapFeed, stored: Stored, channel: Channel, clock: Clock
) -> None:
    watch = feed.subscribe(WANTED)
    await read_until(watch, lambda head: head.state == State.LIVE)

    assert channel.listener is not None
    channel.listener.set_up(False)
    polled = await read_until(watch, lambda head: head.state == State.POLLED)
    stored.rows = [(int(clock.now_s) - 2, KEY, Histogram.of([0.1] * 5))]
    clock.now_s += 1.0
    shown = await read_until(watch, lambda head: head.samples == 5)
    channel.listener.set_up(True)
    live = await read_until(watch, lambda head: head.state == State.LIVE)

    assert polled.since_s == 1_800_000_000.0
    assert shown.state == State.POLLED
    assert live.since_s != live.since_s


async def test_a_lost_database_and_a_telemetry_that_is_behind_are_said(
    feed: HeatmapFeed, stored: Stored, channel: Channel, clock: Clock
) -> None:
    watch = feed.subscribe(WANTED)
    await read_until(watch, lambda head: head.state == State.LIVE)

    stored.unread_since_s = clock.now_s - 20
    behind = await read_until(watch, lambda head: head.state == State.BEHIND)
    stored.failure = OperationalError("down")
    assert channel.listener is not None
    channel.listener.notice_gap()
    clock.now_s += 1.0
    stale = await read_until(watch, lambda head: head.state == State.STALE)
    stored.failure, stored.unread_since_s = None, None
    clock.now_s += 1.0
    await read_until(watch, lambda head: head.state == State.LIVE)

    assert behind.since_s == 1_800_000_000.0 - 20
    assert stale.since_s == 1_800_000_001.0


async def test_a_model_that_is_gone_ends_its_views(feed: HeatmapFeed, stored: Stored) -> None:
    stored.failure = not_found("model", "qwen")
    watch = feed.subscribe(WANTED)

    await watch.wait(timeout_s=LIMIT_S)

    assert watch.failure is not None
    assert watch.failure.code == "not_found"


async def test_without_a_watcher_nothing_is_read(feed: HeatmapFeed, stored: Stored) -> None:
    watch = feed.subscribe(WANTED)
    await read_until(watch, lambda head: head.kind == WHOLE)
    watch.close()
    assert feed._task is not None
    await asyncio.wait_for(feed._task, LIMIT_S)
    reads = stored.reads

    await asyncio.sleep(0.05)

    assert stored.reads == reads
    assert not feed._topics


async def test_the_number_of_different_views_is_bounded(
    feed: HeatmapFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatmap_feed, "MOST_TOPICS", 1)
    feed.subscribe(WANTED)
    feed.subscribe(WANTED)

    with pytest.raises(TooManyViews):
        feed.subscribe(Wanted(model="qwen", stage="e2e"))
