"""How much of its thread's CPU time an event loop spends between two looks at its sockets."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class LoopWatch:
    """`longest_s`: of one turn of the loop, so no callback in it can have held the loop for longer.

    It turns the loop without rest, which costs a core; thread time does not count what other processes took.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.turns = 0
        self._loop = asyncio.get_running_loop()
        self._last_s = 0.0
        self._running = False

    def start(self) -> None:
        self._running = True
        self._last_s = time.thread_time()
        self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._running = False

    def _turn(self) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self.turns += 1
        self._last_s = now_s
        if self._running:
            self._loop.call_soon(self._turn)


@contextmanager
def watch_loop() -> Iterator[LoopWatch]:
    """Of the running loop. Prepare large values before, and wait for the outcome inside."""
    watch = LoopWatch()
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
