"""The live socket of a page: a right at the door and again every few seconds, then frames of what it watches."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any, Protocol

from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from console.access import Right
from console.errors import close_code_for
from console.live.feed import Feed, Topic, find_feed
from console.live.session_rights import find_session_rights
from console.live.subscription import Subscription
from pool.domain.errors import PoolError

BEAT_S = 2.0
RECHECK_S = 3.0
"""A sign-out or a lost role closes the socket within this and one beat: 5 s."""
SIGNED_OUT = 4401
LONGEST_MESSAGE = 1024
NO_LAYER = "none"
"""No channel layer is asked for: the sockets live while Redis is down."""


class Watch(Protocol):
    """One browser's place at what it watches. Bounded by that, however slow the browser is."""

    @property
    def failure(self) -> PoolError | None:
        """Why there is nothing to watch (any more)."""

    async def wait(self, *, timeout_s: float) -> None:
        """Until there is something new, or so long."""

    def take(self) -> str | bytes:
        """The next frame: the whole, what changed since the last one, or a beat."""

    def ask_snapshot(self) -> None:
        """The browser saw a gap: the next frame is a whole one."""

    def close(self) -> None: ...


class WatchConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """The browser may only say `{"type": "resync"}`."""

    channel_layer_alias = NO_LAYER
    watch: Watch
    _pump: asyncio.Task[None] | None = None

    async def open_watch(self) -> Watch:
        """Subscribes. Raises PoolError for what does not exist; the socket then closes with its code."""
        raise NotImplementedError

    async def connect(self) -> None:
        await self.accept()
        if not await self._may():
            await self.close(code=SIGNED_OUT)
            return
        try:
            self.watch = await self.open_watch()
        except PoolError as error:
            await self.close(code=close_code_for(error))
            return
        self._pump = asyncio.create_task(self._send_frames())

    async def disconnect(self, code: int) -> None:
        if self._pump is None:
            return
        self.watch.close()
        if self._pump is not asyncio.current_task():
            self._pump.cancel()
            # OSError: it was sending to a browser that had left already.
            with suppress(asyncio.CancelledError, OSError):
                await self._pump

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._pump is None or text_data is None or len(text_data) > LONGEST_MESSAGE:
            return
        with suppress(ValueError, RecursionError):
            message = json.loads(text_data)
            if isinstance(message, dict) and message.get("type") == "resync":
                self.watch.ask_snapshot()

    async def _send_frames(self) -> None:
        checked_at = time.monotonic()
        while True:
            await self.watch.wait(timeout_s=BEAT_S)
            if time.monotonic() - checked_at >= RECHECK_S:
                if not await self._may():
                    await self._end(SIGNED_OUT)
                    return
                checked_at = time.monotonic()
            if self.watch.failure is not None:
                await self._end(close_code_for(self.watch.failure))
                return
            # A slow browser makes this wait; meanwhile changes merge in the watch.
            frame = self.watch.take()
            if isinstance(frame, bytes):
                await self.send(bytes_data=frame)
            else:
                await self.send(text_data=frame)

    async def _may(self) -> bool:
        scope: dict[str, Any] = self.scope
        try:
            return await find_session_rights().may(scope, Right.VIEW)
        except DatabaseError:
            # Nobody can be asked, and there is no new data either: it says so and asks again.
            return self._pump is not None

    async def _end(self, code: int) -> None:
        self.watch.close()
        await self.close(code=code)


class LiveConsumer(WatchConsumer):
    """`/live/<screen>/[<argument>/]`: cells of a screen as text."""

    async def open_watch(self) -> Watch:
        route = self.scope["url_route"]["kwargs"]
        return ScreenWatch(find_feed(), route["screen"], route.get("argument", ""))


class ScreenWatch:
    """A place at one topic of the feed."""

    def __init__(self, feed: Feed, screen: str, argument: str) -> None:
        self._feed = feed
        self._topic: Topic
        self._place: Subscription
        self._topic, self._place = feed.subscribe((screen, argument))

    @property
    def failure(self) -> PoolError | None:
        return self._topic.failure

    async def wait(self, *, timeout_s: float) -> None:
        await self._place.wait(timeout_s=timeout_s)

    def take(self) -> str:
        return encode(self._place.take(self._topic.state()))

    def ask_snapshot(self) -> None:
        self._place.ask_snapshot()

    def close(self) -> None:
        self._feed.unsubscribe(self._topic, self._place)


def encode(frame: dict[str, object]) -> str:
    return json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
