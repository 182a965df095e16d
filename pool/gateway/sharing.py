"""Carries the shared view, the ledger of limits and the engines' gauges through Redis, in a loop of its own.

Nothing waits for it. A tick is every 200 ms, in which each process gives up what others need more; a limit that runs
short here is looked at at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from pool.gateway.gauges import Gauges, read_gauges
from pool.gateway.ledger import LEDGER, build_call, read_answer
from pool.gateway.limits import LOST_S, Limits
from pool.gateway.shared_view import SharedView

logger = logging.getLogger(__name__)

TICK_S = 0.2
GAUGES_S = 1.0
_QUICKEST_S = 0.01
"""Between two looks into the ledger that were asked for."""
_TIMEOUT_S = 0.4
_BACK_OFF_S = (0.1, 0.2, 0.5, 1.0)

OnGauges = Callable[[Mapping[tuple[str, int], tuple[Gauges, float]], float], None]
"""Replica and generation → gauges and their age in seconds; and the loop's time now."""


class Sharing:
    """`prefix()` is None until the installation is known. `on_view(now_s)` is called with each new view, and without
    one while Redis is silent."""

    def __init__(
        self,
        url: str | None,
        view: SharedView,
        limits: Limits,
        *,
        prefix: Callable[[], str | None],
        on_view: Callable[[float], None] | None = None,
        on_gauges: OnGauges | None = None,
    ) -> None:
        self._url = url
        self._view = view
        self._limits = limits
        self._prefix = prefix
        self._on_view = on_view
        self._on_gauges = on_gauges
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._answered_at_s = self._loop.time()
        self._next_views_s = 0.0
        self._next_gauges_s = 0.0
        self._seen_ms = 0
        self._offset_ms: float | None = None
        """Clock of Redis less the loop's own."""
        limits.wake = self._woken.set

    async def run(self) -> None:
        """Until it is cancelled; each failure is tried again."""
        failures = 0
        while self._url is not None:
            prefix = self._prefix()
            if prefix is not None:
                answered_before_s = self._answered_at_s
                await self._hold_session(self._url, prefix)
                failures = 0 if self._answered_at_s > answered_before_s else failures + 1
            self._note_silence()
            await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])

    async def _hold_session(self, url: str, prefix: str) -> None:
        """Until the connection is lost."""
        # Without a retry of its own the client fails at once, and this loop decides.
        client = redis.asyncio.Redis.from_url(
            url, socket_connect_timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S, retry=None
        )
        try:
            while True:
                await self._tick(client, prefix)
                _leave_if_cancelled()
                await self._pause()
        except (RedisError, OSError, TimeoutError) as exc:
            logger.debug("the shared view lost redis", extra={"error": type(exc).__name__})
        finally:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await client.aclose()
        _leave_if_cancelled()

    async def _pause(self) -> None:
        await asyncio.sleep(_QUICKEST_S)
        if not self._limits.has_waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S - _QUICKEST_S):
                    await self._woken.wait()
        self._woken.clear()

    async def _tick(self, client: redis.asyncio.Redis, prefix: str) -> None:
        now_s = self._loop.time()
        if now_s >= self._next_views_s:
            self._next_views_s = now_s + TICK_S
            await self._swap_views(client, prefix)
        if await self._ask_ledger(client, prefix):
            # What this process gave up is free for the others once the ledger knows of it.
            await self._ask_ledger(client, prefix)
        self._answered_at_s = self._loop.time()
        if self._on_gauges is not None and now_s >= self._next_gauges_s:
            self._next_gauges_s = now_s + GAUGES_S
            await self._read_gauges(client, prefix, self._on_gauges)

    async def _swap_views(self, client: redis.asyncio.Redis, prefix: str) -> None:
        key, view = f"{prefix}:views", self._view
        if self._offset_ms is None:
            seconds, micros = await _answer(client.time())
            self._offset_ms = seconds * 1000 + micros / 1000 - self._loop.time() * 1000
        entry = view.write(int(self._loop.time() * 1000 + self._offset_ms), self._loop.time())
        pipeline = client.pipeline(transaction=False)
        pipeline.time()
        pipeline.hset(key, view.gateway_id, entry)
        pipeline.hgetall(key)
        pipeline.expire(key, 60)
        (seconds, micros), _, entries, _ = await pipeline.execute()
        now_s, redis_ms = self._loop.time(), seconds * 1000 + micros // 1000
        self._offset_ms = redis_ms - now_s * 1000
        forgotten = view.absorb(entries, redis_ms, now_s)
        self._limits.count_processes(view.process_count, now_s)
        self._tell_view(now_s)
        if forgotten:
            await _answer(client.hdel(key, *forgotten))
            await _answer(client.hdel(f"{prefix}:gateway-state", *forgotten))

    async def _ask_ledger(self, client: redis.asyncio.Redis, prefix: str) -> bool:
        """True if caps of this process sank."""
        limits, now_s = self._limits, self._loop.time()
        if not limits.needs_ledger:
            return False
        asked = limits.collect(now_s)
        keys, args = build_call(
            prefix, self._view.gateway_id, asked,
            processes=limits.processes, since_ms=self._seen_ms, now_s=now_s,
        )  # fmt: skip
        answer = read_answer(await _answer(client.register_script(LEDGER)(keys=keys, args=args)))
        # What was entered within the same millisecond may come twice, but is not missed.
        self._seen_ms = answer.at_ms
        has_sunk = limits.absorb(asked, answer, self._loop.time())
        return has_sunk

    async def _read_gauges(self, client: redis.asyncio.Redis, prefix: str, on_gauges: OnGauges) -> None:
        stored: Mapping[bytes, bytes] = await _answer(client.hgetall(f"{prefix}:gauges"))
        redis_ms = self._loop.time() * 1000 + (self._offset_ms or 0.0)
        old, usable = [], {}
        for name, content in stored.items():
            found = read_gauges(name, content, redis_ms)
            if found is None:
                old.append(name)
            else:
                usable[found[:2]] = found[2:]
        on_gauges(usable, self._loop.time())
        if old:
            await _answer(client.hdel(f"{prefix}:gauges", *old))

    def _note_silence(self) -> None:
        now_s = self._loop.time()
        if now_s - self._answered_at_s >= LOST_S:
            self._limits.note_lost(now_s)
            self._tell_view(now_s)

    def _tell_view(self, now_s: float) -> None:
        if self._on_view is not None:
            self._on_view(now_s)


def _leave_if_cancelled() -> None:
    """The client can take a cancel for a time-out of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _answer(call: Any) -> Any:
    """redis-py types its asynchronous commands as either a value or an awaitable of it."""
    return await call
