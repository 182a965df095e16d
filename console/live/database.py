"""Database work of the event loop: in threads of its own, so that a slow database never stops the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connection

T = TypeVar("T")
THREADS = 3

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="live")


async def run_in_thread(work: Callable[[], T]) -> T:
    """The connection goes back to the pool at once: three threads hold at most three."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _run_and_close, work)


def _run_and_close(work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        connection.close()
