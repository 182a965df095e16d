"""One browser's place in a topic: a snapshot, then merged changes. Bounded by the screen, however slow it is."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from console.live.cells import Cells, Changes


class FeedState(TypedDict):
    """`at`: when the screen was built; `now`: the server's clock; `state`: live or stale, and since when."""

    at: str | None
    now: str
    state: str
    since: str | None


class Subscription:
    """Filled by the feed, emptied by one consumer. Both live in the same event loop, so no lock is needed."""

    def __init__(self) -> None:
        self._changes = Changes()
        self._cells: Cells | None = None
        self._seq: int | None = None
        self._sent_seq: int | None = None
        self._wants_snapshot = True
        self._woken = asyncio.Event()

    def offer(self, cells: Cells, changes: Changes, *, seq: int) -> None:
        """The topic's newest cells and what changed in them; merged with what was not sent yet."""
        self._cells, self._seq = cells, seq
        if not self._wants_snapshot:
            self._changes.add(changes)
        self._woken.set()

    def wake(self) -> None:
        """The feed's state changed though no cell did."""
        self._woken.set()

    def ask_snapshot(self) -> None:
        """The browser saw a gap: the next frame is a whole one."""
        self._wants_snapshot = True
        self._woken.set()

    async def wait(self, *, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return

    def take(self, feed: FeedState) -> dict[str, object]:
        """The next frame: a snapshot, the changes since the last frame, or a beat without any."""
        self._woken.clear()
        if self._wants_snapshot and self._cells is not None:
            self._wants_snapshot, self._changes = False, Changes()
            self._sent_seq = self._seq
            return {"type": "snapshot", "seq": self._seq, "cells": self._cells, **feed}
        if self._changes and not self._wants_snapshot:
            changes, self._changes = self._changes, Changes()
            before, self._sent_seq = self._sent_seq, self._seq
            gone = sorted(changes.gone)
            return {
                "type": "delta",
                "from": before,
                "seq": self._seq,
                "set": changes.put,
                "gone": gone,
                **feed,
            }
        return {"type": "beat", "seq": self._sent_seq, **feed}
