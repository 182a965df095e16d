"""How late web's event loop is: a sleep that ends late was kept from ending by something that did not yield."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

EVERY_S: Final = 0.25
KEPT_S: Final = 10.0


class LoopLag:
    """One for the process. Written in the loop's thread, read from any."""

    def __init__(self) -> None:
        self._readings: deque[float] = deque(maxlen=round(KEPT_S / EVERY_S))

    async def watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(EVERY_S)
            self._readings.append(max(0.0, time.monotonic() - before - EVERY_S))

    @property
    def longest_s(self) -> float | None:
        """Of the last 10 s; None before the first reading."""
        return max(self._readings.copy(), default=None)


LAG: Final = LoopLag()
