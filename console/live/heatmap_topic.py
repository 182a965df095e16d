"""One live heatmap and the browsers that watch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from console.live.heatmap_frames import State, encode_frame
from console.live.heatmap_window import HeatmapWindow, Wanted
from console.live.telemetry_channel import OpenCell
from pool.domain.cells import SeriesKey
from pool.domain.errors import PoolError
from pool.domain.histogram import Histogram

FRAME_KEPT_S = 0.5
"""So long browsers that are equally far get the same bytes, also when only the clock has moved."""


class HeatmapTopic:
    """Owned by the feed. Every browser's place is a number, so that a slow one costs nothing."""

    def __init__(self, wanted: Wanted, *, clock: Callable[[], float]) -> None:
        self.wanted = wanted
        self.window = HeatmapWindow(wanted)
        self.watches: set[HeatmapWatch] = set()
        self.failure: PoolError | None = None
        self.is_filled = False
        self.is_reading = False
        self.needs_repair = False
        self.read_after_s = 0.0
        self.state = State.LIVE
        self.state_since_s: float | None = None
        self._missed_since_s: float | None = None
        self._clock = clock
        self._frames: dict[int | None, bytes] = {}
        self._encoded_at_s = 0.0

    def add(self, cell: OpenCell, *, now_s: float) -> None:
        histogram = cell.histogram(self.wanted.stage)
        if histogram is not None:
            self.window.add(cell.at_s, cell.key, histogram, now_s=now_s)

    def fill(
        self,
        rows: Iterable[tuple[int, SeriesKey, Histogram]],
        *,
        span_s: tuple[float, float],
        next_at_s: float,
    ) -> None:
        """What the database holds of that span; not to be read again before `next_at_s`."""
        self.window.fill(rows, now_s=self._clock())
        self.window.late = {at_s for at_s in self.window.late if not span_s[0] <= at_s < span_s[1]}
        self.read_after_s = next_at_s
        self.needs_repair, self._missed_since_s = False, None
        if not self.is_filled:
            self.is_filled = True
            self.window.settle(now_s=self._clock())
            self._wake()

    def miss(self, *, retry_at_s: float) -> None:
        """The database did not answer."""
        if self._missed_since_s is None:
            self._missed_since_s = self._clock()
        self.read_after_s = retry_at_s

    def refuse(self, failure: PoolError) -> None:
        self.failure = failure
        self._wake()

    def publish(self, *, is_up: bool, down_since_s: float | None, behind_since_s: float | None) -> None:
        """Makes what came since visible to the browsers."""
        before = self.state, self.state_since_s
        if self._missed_since_s is not None:
            self.state, self.state_since_s = State.STALE, self._missed_since_s
        elif not is_up:
            self.state, self.state_since_s = State.POLLED, down_since_s
        elif behind_since_s is not None:
            self.state, self.state_since_s = State.BEHIND, behind_since_s
        else:
            self.state, self.state_since_s = State.LIVE, None
        has_news = self.window.settle(now_s=self._clock()) or before != (self.state, self.state_since_s)
        if has_news:
            self._frames.clear()
            self._wake()

    def frame(self, since: int | None) -> bytes:
        now_s = self._clock()
        if abs(now_s - self._encoded_at_s) > FRAME_KEPT_S:
            self._frames.clear()
        if not self._frames:
            self._encoded_at_s = now_s
        if since not in self._frames:
            self._frames[since] = encode_frame(
                self.window, since=since, now_s=now_s, state=self.state, state_since_s=self.state_since_s
            )
        return self._frames[since]

    def _wake(self) -> None:
        for watch in self.watches:
            watch.wake()


class HeatmapWatch:
    """One browser's place: how far it is. Whoever is slow gets all that changed since in one frame."""

    def __init__(self, topic: HeatmapTopic, *, leave: Callable[[HeatmapWatch], None]) -> None:
        self.topic = topic
        self._leave = leave
        self._sent: int | None = None
        self._woken = asyncio.Event()
        if topic.is_filled:
            self._woken.set()
        topic.watches.add(self)

    @property
    def failure(self) -> PoolError | None:
        return self.topic.failure

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, *, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()

    def take(self) -> bytes:
        self._woken.clear()
        topic = self.topic
        if not topic.is_filled:
            # Nothing to show yet, but how things stand: a beat.
            return topic.frame(topic.window.seq)
        frame = topic.frame(self._sent)
        self._sent = topic.window.seq
        return frame

    def ask_snapshot(self) -> None:
        self._sent = None
        self._woken.set()

    def close(self) -> None:
        self._leave(self)
