"""The live heatmaps that somebody watches: filled from the database once, then by the channel of open cells.

Frames go out at most twice a second, encoded once for all that watch the same. Without a watcher it does nothing.
With Redis silent it reads the newest seconds from the database, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from weakref import WeakKeyDictionary

from console.live.heatmap_source import Source
from console.live.heatmap_topic import HeatmapTopic, HeatmapWatch
from console.live.heatmap_window import RECENT_S, WINDOW_S, Wanted
from console.live.limits import TooManyViews
from console.live.telemetry_channel import Listener, OpenCell, listen_for_cells
from pool.domain.errors import PoolError

logger = logging.getLogger(__name__)

SHORTEST_PAUSE_S = 0.5
POLL_S = 1.0
CHECK_S = 3.0
REPAIR_AFTER_S = 2.0
"""After a gap in the messages the newest seconds are read again, when they have been stored."""
RETRY_S = 2.0
MOST_TOPICS = 64
"""A window takes up to some megabytes."""


class HeatmapFeed:
    """Lives in one event loop; see `find_heatmaps`. Is the channel's listener."""

    def __init__(
        self,
        *,
        source: Source | None = None,
        listen: Callable[[Listener], Awaitable[None]] = listen_for_cells,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source or Source()
        self._listen = listen
        self._clock = clock
        self._topics: dict[Wanted, HeatmapTopic] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_up = False
        self._down_since_s: float | None = None
        self._repair_at_s: float | None = None
        self._behind_since_s: float | None = None
        self._next_check_s = 0.0

    def subscribe(self, wanted: Wanted) -> HeatmapWatch:
        """From now on nothing is missed; the first frame is the whole window. Raises TooManyViews."""
        topic = self._topics.get(wanted)
        if topic is None:
            if len(self._topics) >= MOST_TOPICS:
                raise TooManyViews
            topic = self._topics[wanted] = HeatmapTopic(wanted, clock=self._clock)
        watch = HeatmapWatch(topic, leave=self._leave)
        self._woken.set()
        if self._task is None or self._task.done():
            self._down_since_s = self._clock()
            self._task = asyncio.create_task(self._run())
        return watch

    def take_cells(self, cells: Iterable[OpenCell]) -> None:
        by_model: dict[str, list[HeatmapTopic]] = {}
        for topic in self._topics.values():
            by_model.setdefault(topic.wanted.model, []).append(topic)
        now_s = self._clock()
        for cell in cells:
            for topic in by_model.get(cell.key.model, ()):
                topic.add(cell, now_s=now_s)
        self._woken.set()

    def notice_gap(self) -> None:
        self._repair_at_s = self._clock() + REPAIR_AFTER_S

    def set_up(self, is_up: bool) -> None:
        if is_up != self._is_up:
            self._is_up = is_up
            self._down_since_s = None if is_up else self._clock()
            self._woken.set()

    def _leave(self, watch: HeatmapWatch) -> None:
        topic = watch.topic
        topic.watches.discard(watch)
        if not topic.watches and self._topics.get(topic.wanted) is topic:
            del self._topics[topic.wanted]
            self._woken.set()

    async def _run(self) -> None:
        listening = asyncio.create_task(self._listen_on())
        # It begins before anybody is told that it has heard nothing.
        await asyncio.sleep(0)
        try:
            while self._topics:
                # Not `wait_for`: on Python 3.11 it may swallow a cancellation that comes with the result.
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._woken.wait()
                self._woken.clear()
                self._start_reading()
                for topic in list(self._topics.values()):
                    topic.publish(
                        is_up=self._is_up,
                        down_since_s=self._down_since_s,
                        behind_since_s=self._behind_since_s,
                    )
                await asyncio.sleep(SHORTEST_PAUSE_S)
        finally:
            tasks = [listening, *self._loads]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen_on(self) -> None:
        await self._listen(self)

    def _start_reading(self) -> None:
        now_s = self._clock()
        repairs = self._repair_at_s is not None and now_s >= self._repair_at_s
        if repairs:
            self._repair_at_s = None
        for topic in self._topics.values():
            span = self._span_to_read(topic, now_s, repairs=repairs)
            if span is not None and not topic.is_reading and now_s >= topic.read_after_s:
                topic.is_reading = True
                self._start(self._read(topic, *span))
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + CHECK_S
            self._start(self._check_position())

    def _span_to_read(
        self, topic: HeatmapTopic, now_s: float, *, repairs: bool
    ) -> tuple[float, float] | None:
        topic.needs_repair = topic.needs_repair or repairs
        if not topic.is_filled:
            return now_s - WINDOW_S, now_s + 1
        if topic.needs_repair or not self._is_up:
            return now_s - RECENT_S, now_s + 1
        if topic.window.late:
            return min(topic.window.late), max(topic.window.late) + 1
        return None

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _read(self, topic: HeatmapTopic, start_s: float, end_s: float) -> None:
        try:
            rows = await self._source.read_seconds(topic.wanted, start_s, end_s)
        except PoolError as error:
            topic.refuse(error)
        except Exception:  # the edge of a loop: one window fails, the others go on
            logger.info("a live heatmap cannot be read from the database", exc_info=True)
            topic.miss(retry_at_s=self._clock() + RETRY_S)
        else:
            topic.fill(rows, span_s=(start_s, end_s), next_at_s=self._clock() + POLL_S)
        finally:
            topic.is_reading = False
            self._woken.set()

    async def _check_position(self) -> None:
        try:
            self._behind_since_s = await self._source.find_unread_since(self._clock())
        except Exception:  # the edge of a loop; what cannot be asked is told by the reads and the channel
            self._behind_since_s = None


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, HeatmapFeed] = WeakKeyDictionary()


def find_heatmaps() -> HeatmapFeed:
    """The one of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loop:
        _of_loop[loop] = HeatmapFeed()
    return _of_loop[loop]
