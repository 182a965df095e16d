"""The feed and a browser's place in it, on screens that the test changes by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from console.live import feed as feed_module
from console.live.cells import Cells
from console.live.feed import Feed, Topic, TopicKey
from console.live.limits import TooManyViews
from console.live.subscription import Subscription
from pool.services.errors import not_found

KEY: TopicKey = ("overview", "")
LIMIT_S = 5.0


class Screen:
    """What the feed builds: cells, or a failure."""

    def __init__(self) -> None:
        self.cells: Cells = {"n": 0}
        self.failure: Exception | None = None
        self.built = 0
        self.wake: Callable[[], None] = lambda: None

    def build(self, key: TopicKey) -> Cells:
        self.built += 1
        if self.failure is not None:
            raise self.failure
        return dict(self.cells)

    async def listen(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        await asyncio.Event().wait()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setattr(feed_module, "POLL_S", 0.04)
    monkeypatch.setattr(feed_module, "SHORTEST_PAUSE_S", 0.02)
    monkeypatch.setattr(feed_module, "run_in_thread", lambda work: asyncio.to_thread(work))
    return Screen()


@pytest.fixture
async def feed(screen: Screen) -> AsyncIterator[Feed]:
    feed = Feed(build=screen.build, listen=screen.listen)
    yield feed
    for topic in list(feed._topics.values()):
        for watcher in list(topic.watchers):
            feed.unsubscribe(topic, watcher)
    if feed._task is not None:
        await asyncio.wait_for(feed._task, LIMIT_S)


async def read_frame(topic: Topic, watcher: Subscription, kind: str) -> dict[str, Any]:
    """The next frame of this kind."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            await watcher.wait(timeout_s=0.05)
            frame = watcher.take(topic.state())
            if frame["type"] == kind:
                return frame


async def test_a_snapshot_comes_first_then_deltas_in_order(feed: Feed, screen: Screen) -> None:
    topic, watcher = feed.subscribe(KEY)
    first = await read_frame(topic, watcher, "snapshot")

    screen.cells = {"n": 1, "m": 5}
    second = await read_frame(topic, watcher, "delta")
    screen.cells = {"n": 1}
    third = await read_frame(topic, watcher, "delta")

    assert first["cells"] == {"n": 0}
    assert (second["from"], second["set"], second["gone"]) == (first["seq"], {"n": 1, "m": 5}, [])
    assert (third["from"], third["set"], third["gone"]) == (second["seq"], {}, ["m"])


async def test_a_slow_reader_gets_one_merged_delta(feed: Feed, screen: Screen) -> None:
    """FC-65"""
    topic, watcher = feed.subscribe(KEY)
    first = await read_frame(topic, watcher, "snapshot")
    for number in range(1, 4):
        screen.cells = {"n": number}
        await _until(partial(_shows, topic, number))

    merged = watcher.take(topic.state())

    assert (merged["from"], merged["seq"], merged["set"]) == (first["seq"], topic.seq, {"n": 3})


async def test_after_a_gap_the_next_frame_is_whole(feed: Feed, screen: Screen) -> None:
    """FC-64"""
    topic, watcher = feed.subscribe(KEY)
    await read_frame(topic, watcher, "snapshot")

    watcher.ask_snapshot()
    again = await read_frame(topic, watcher, "snapshot")

    assert again["cells"] == {"n": 0}
    assert again["seq"] == topic.seq


async def test_a_second_watcher_starts_from_the_same_state(feed: Feed, screen: Screen) -> None:
    topic, watcher = feed.subscribe(KEY)
    await read_frame(topic, watcher, "snapshot")

    same, second = feed.subscribe(KEY)

    assert same is topic
    assert second.take(topic.state())["type"] == "snapshot"


async def test_nothing_is_read_without_a_watcher(feed: Feed, screen: Screen) -> None:
    topic, watcher = feed.subscribe(KEY)
    await read_frame(topic, watcher, "snapshot")
    feed.unsubscribe(topic, watcher)
    assert feed._task is not None
    await asyncio.wait_for(feed._task, LIMIT_S)
    built = screen.built

    await asyncio.sleep(0.1)

    assert screen.built == built


async def test_a_lost_database_is_said_and_so_is_its_return(feed: Feed, screen: Screen) -> None:
    topic, watcher = feed.subscribe(KEY)
    await read_frame(topic, watcher, "snapshot")

    screen.failure = ConnectionError("down")
    stale = await read_stated(topic, watcher, "stale")
    screen.failure = None
    live = await read_stated(topic, watcher, "live")

    assert stale["since"] is not None
    assert live["since"] is None


async def read_stated(topic: Topic, watcher: Subscription, state: str) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_S):
        while True:
            await watcher.wait(timeout_s=0.05)
            frame = watcher.take(topic.state())
            if frame["state"] == state:
                return frame


async def test_an_object_that_is_gone_ends_its_topic(feed: Feed, screen: Screen) -> None:
    screen.failure = not_found("replica", "r1")
    topic, watcher = feed.subscribe(KEY)

    await _until(lambda: topic.failure is not None)

    assert watcher.take(topic.state())["type"] == "beat"


async def test_a_notification_is_sooner_than_the_poll(
    feed: Feed, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "POLL_S", 60.0)
    topic, watcher = feed.subscribe(KEY)
    await read_frame(topic, watcher, "snapshot")
    screen.cells = {"n": 7}

    screen.wake()

    assert (await read_frame(topic, watcher, "delta"))["set"] == {"n": 7}


def _shows(topic: Topic, number: int) -> bool:
    return topic.cells == {"n": number}


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - the feed has no event of its own for a test
            await asyncio.sleep(0.005)


async def test_made_up_filters_do_not_take_the_live_pages_of_others(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MOST_TOPICS", 2)
    feed.subscribe(("replicas", "a"))
    feed.subscribe(("replicas", "b"))

    with pytest.raises(TooManyViews):
        feed.subscribe(("replicas", "c"))
    feed.subscribe(("replicas", "b"))
