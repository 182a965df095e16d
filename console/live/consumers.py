"""The live socket of a page: a right at the door and again every few seconds, then frames of the feed."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from console.access import Right, socket_may
from console.errors import close_code_for
from console.live.database import run_in_thread
from console.live.feed import Feed, Topic, find_feed
from console.live.subscription import Subscription

BEAT_S = 2.0
RECHECK_S = 3.0
"""A sign-out or a lost role closes the socket within this and one beat: 5 s."""
SIGNED_OUT = 4401
LONGEST_MESSAGE = 1024
NO_LAYER = "none"
"""No channel layer is asked for: the sockets live while Redis is down."""


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """`/live/<screen>/?of=<argument>`. The browser may only say `{"type": "resync"}`."""

    channel_layer_alias = NO_LAYER
    feed: Feed
    topic: Topic
    watcher: Subscription
    _pump: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self.accept()
        if not await self._may():
            await self.close(code=SIGNED_OUT)
            return
        route = self.scope["url_route"]["kwargs"]
        self.feed = find_feed()
        self.topic, self.watcher = self.feed.subscribe((route["screen"], route.get("argument", "")))
        self._pump = asyncio.create_task(self._send_frames())

    async def disconnect(self, code: int) -> None:
        if self._pump is None:
            return
        self.feed.unsubscribe(self.topic, self.watcher)
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
                self.watcher.ask_snapshot()

    async def _send_frames(self) -> None:
        checked_at = time.monotonic()
        while True:
            await self.watcher.wait(timeout_s=BEAT_S)
            if time.monotonic() - checked_at >= RECHECK_S:
                if not await self._may():
                    await self._end(SIGNED_OUT)
                    return
                checked_at = time.monotonic()
            if self.topic.failure is not None:
                await self._end(close_code_for(self.topic.failure))
                return
            # A slow browser makes this wait; meanwhile changes merge in the subscription.
            await self.send(text_data=encode(self.watcher.take(self.topic.state())))

    async def _may(self) -> bool:
        scope: dict[str, Any] = self.scope
        try:
            return await run_in_thread(lambda: socket_may(scope, Right.VIEW))
        except DatabaseError:
            # Nobody can be asked, and the feed has no new data either: it says so and asks again.
            return self._pump is not None

    async def _end(self, code: int) -> None:
        self.feed.unsubscribe(self.topic, self.watcher)
        await self.close(code=code)


def encode(frame: dict[str, object]) -> str:
    return json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
