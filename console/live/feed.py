"""The feed of a web process: builds each watched screen when PostgreSQL says that something changed, at the
latest each second, at most twice a second, and hands out what changed. Without a watcher it does nothing.

It reads PostgreSQL: with Redis down it goes on (only traffic control then has unknowns), with PostgreSQL down it
says since when it is stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

from console.live.cells import Cells, Changes, compare, flatten
from console.live.database import run_in_thread
from console.live.limits import TooManyViews
from console.live.registry import build_screen
from console.live.subscription import FeedState, Subscription
from console.live.wakeups import listen_for_changes
from console.templatetags.units import to_iso
from pool.domain.errors import PoolError

logger = logging.getLogger(__name__)

POLL_S = 1.0
SHORTEST_PAUSE_S = 0.5
LONGEST_BUILD_S = 5.0
MOST_TOPICS = 512
"""Different screens, filters included: each is built anew each second, so that made-up filters would starve others."""

TopicKey = tuple[str, str]
Build = Callable[[TopicKey], Cells]
Listen = Callable[[Callable[[], None]], Awaitable[None]]


@dataclass
class Topic:
    """One screen that somebody watches. `failure` is the reason why it cannot be built (gone, refused)."""

    key: TopicKey
    cells: Cells | None = None
    seq: int = 0
    built_at: datetime | None = None
    stale_since: datetime | None = None
    failure: PoolError | None = None
    watchers: set[Subscription] = field(default_factory=set)

    def state(self) -> FeedState:
        stale = self.stale_since is not None or self.built_at is None
        return {
            "at": to_iso(self.built_at) or None,
            "now": to_iso(datetime.now(UTC)),
            "state": "stale" if stale else "live",
            "since": to_iso(self.stale_since) or None,
        }

    def take_in(self, cells: Cells, *, now: datetime) -> None:
        was_stale = self.stale_since is not None
        self.built_at, self.stale_since, self.failure = now, None, None
        changes = compare(self.cells, cells) if self.cells is not None else Changes(put=cells)
        if changes or self.cells is None:
            self.seq += 1
            self.cells = cells
            for watcher in self.watchers:
                watcher.offer(cells, changes, seq=self.seq)
        elif was_stale:
            self._wake()

    def miss(self, *, now: datetime) -> None:
        if self.stale_since is None:
            self.stale_since = self.built_at or now
            self._wake()

    def refuse(self, failure: PoolError) -> None:
        self.failure = failure
        self._wake()

    def _wake(self) -> None:
        for watcher in self.watchers:
            watcher.wake()


def build_cells(key: TopicKey) -> Cells:
    return flatten(build_screen(*key))


class Feed:
    """Lives in one event loop; see `find_feed`."""

    def __init__(self, *, build: Build = build_cells, listen: Listen = listen_for_changes) -> None:
        self._build = build
        self._listen = listen
        self._topics: dict[TopicKey, Topic] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, key: TopicKey) -> tuple[Topic, Subscription]:
        """From now on nothing is missed; the first frame is a snapshot as soon as there is one. Raises TooManyViews."""
        if key not in self._topics and len(self._topics) >= MOST_TOPICS:
            raise TooManyViews
        topic = self._topics.setdefault(key, Topic(key))
        watcher = Subscription()
        topic.watchers.add(watcher)
        if topic.cells is not None:
            watcher.offer(topic.cells, Changes(), seq=topic.seq)
        self._woken.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return topic, watcher

    def unsubscribe(self, topic: Topic, watcher: Subscription) -> None:
        topic.watchers.discard(watcher)
        if not topic.watchers:
            self._topics.pop(topic.key, None)
            self._woken.set()

    async def _run(self) -> None:
        listening = asyncio.create_task(self._listen_on())
        try:
            while self._topics:
                self._woken.clear()
                await asyncio.gather(*(self._refresh(topic) for topic in list(self._topics.values())))
                await asyncio.sleep(SHORTEST_PAUSE_S)
                # Not `wait_for`: on Python 3.11 it may swallow a cancellation that comes with the result.
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S - SHORTEST_PAUSE_S):
                        await self._woken.wait()
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen_on(self) -> None:
        await self._listen(self._woken.set)

    async def _refresh(self, topic: Topic) -> None:
        try:
            async with asyncio.timeout(LONGEST_BUILD_S):
                cells = await run_in_thread(lambda: self._build(topic.key))
        except PoolError as error:
            topic.refuse(error)
        except Exception:  # the edge of a loop: one screen fails, the others go on
            if topic.stale_since is None:
                logger.warning("a live screen cannot be built", exc_info=True, extra={"topic": topic.key[0]})
            topic.miss(now=datetime.now(UTC))
        else:
            topic.take_in(cells, now=datetime.now(UTC))


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, Feed] = WeakKeyDictionary()


def find_feed() -> Feed:
    """The one feed of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _feeds:
        _feeds[loop] = Feed()
    return _feeds[loop]
