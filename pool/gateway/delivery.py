"""Brings tables in and takes beats and facts out: by Redis, and by web when Redis gives no sign.

Serving never waits for anything here, and nothing here gives up: each way is tried again for ever.
"""

import asyncio
import base64
import contextlib
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import redis.asyncio
from redis.exceptions import RedisError

from pool.domain.signing import derive_internal_token
from pool.gateway import metrics
from pool.gateway.beats import build_beat
from pool.gateway.captures import STREAM_LENGTH, build_entries
from pool.gateway.fetch import FetchFailed, fetch
from pool.gateway.plane import Plane
from pool.gateway.sharing import Sharing

logger = logging.getLogger(__name__)

BEAT_S = 1.0
SILENCE_S = 0.5
"""Without a sign of Redis for so long, web is asked, this often."""
_TICK_S = 0.2
_STATE_KEPT_S = 60
_REDIS_TIMEOUT_S = 0.4
_BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_FACTS_S = 0.2
# A table of this size is read in less time than a thread takes to wake on a busy machine (half a millisecond).
_SMALL_BYTES = 16 * 1024
_USAGE_S = 1.0
_CAPTURES_BATCH = 16
_FAREWELL_S = 0.5
_FACTS_BATCH = 2000
# In Redis' bounded memory, at about 1 kB each; telemetry cuts off what it has stored.
_MOST_FACTS_KEPT = 60_000


class Delivery:
    """`describe(now_s)`: what pages show of this process; JSON-able. `sharing`: what the processes tell each other."""

    def __init__(
        self,
        plane: Plane,
        *,
        sharing: Sharing | None = None,
        describe: Callable[[float], Mapping[str, Any]] | None = None,
    ) -> None:
        self._plane = plane
        self._sharing = sharing
        self._describe = describe
        self._loop = asyncio.get_running_loop()
        self._client: redis.asyncio.Redis | None = None
        """While there is a session."""
        self._last_sign_s = float("-inf")
        self._next_beat_s = 0.0
        self._next_facts_s = 0.0
        self._next_usage_s = 0.0
        self._usual_batch = 1.0
        self._next_state_s = 0.0

    @property
    def redis_is_silent(self) -> bool:
        return self._loop.time() - self._last_sign_s > SILENCE_S

    def start(self) -> list[asyncio.Task[None]]:
        """Loops that run until they are cancelled."""
        loops: list[Callable[[], Awaitable[None]]] = [self._follow_redis, self._ask_web, self._keep_house]
        if self._sharing is not None:
            loops.append(self._sharing.run)
        return [self._loop.create_task(_go_on(work)) for work in loops]

    # Redis.
    async def _follow_redis(self) -> None:
        url, failures = self._plane.config.redis_url, 0
        while url is not None:
            if self._plane.routes.installation is None:
                await asyncio.sleep(_TICK_S)  # The names of the channels come with the first table, from web.
                continue
            # Without a retry of its own the client fails at once, and the loop below decides.
            client = redis.asyncio.Redis.from_url(
                url, socket_connect_timeout=_REDIS_TIMEOUT_S, socket_timeout=_REDIS_TIMEOUT_S, retry=None
            )
            try:
                await self._hold_session(client, self._plane.routes.installation)
            except (RedisError, OSError, TimeoutError) as exc:
                if not failures:
                    logger.warning("redis lost", extra={"error": type(exc).__name__})
                failures = 0 if not self.redis_is_silent else failures + 1
            finally:
                self._client = None
                self._plane.answers.attach(None, prefix="")
                with contextlib.suppress(RedisError, OSError, TimeoutError):
                    await client.aclose()
            await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])

    async def _hold_session(self, client: "redis.asyncio.Redis", installation: str) -> None:
        """Raises when the connection is lost."""
        prefix = f"sluice:{installation}"
        async with client.pubsub(ignore_subscribe_messages=True) as news:
            await news.subscribe(f"{prefix}:table")
            await self._read_table(client, prefix)
            self._plane.answers.attach(client, prefix=prefix)
            self._client = client
            next_tick_s = 0.0
            while True:
                now_s = self._loop.time()
                if now_s >= next_tick_s:
                    next_tick_s = now_s + _TICK_S
                    await self._tick(client, prefix, now_s)
                wait_s = max(0.0, next_tick_s - self._loop.time())
                if await news.get_message(timeout=wait_s) is not None:
                    await self._read_table(client, prefix, is_news=True)

    async def _tick(self, client: "redis.asyncio.Redis", prefix: str, now_s: float) -> None:
        if now_s >= self._next_beat_s:
            await self._beat(client, prefix)
            # News can be lost on the way; the stored table cannot.
            await self._read_table(client, prefix)
        else:
            await client.ping()
        self._last_sign_s = self._loop.time()
        if now_s >= self._next_usage_s:
            self._next_usage_s = now_s + _USAGE_S
            await self._plane.usage.tell(client, prefix, now_s)
        if now_s >= self._next_facts_s and len(self._plane.facts):
            self._next_facts_s = now_s + _FACTS_S
            await self._send_facts(client, prefix)
        if len(self._plane.captures):
            await self._send_captures(client, prefix)

    async def say_farewell(self) -> None:
        """Before a stop that was asked for: what telemetry has not got yet, if Redis takes it soon."""
        client, installation = self._client, self._plane.routes.installation
        if client is None or installation is None:
            return
        prefix = f"sluice:{installation}"
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._plane.usage.tell(client, prefix, self._loop.time())
                while len(self._plane.facts):
                    await self._send_facts(client, prefix)

    async def _read_table(self, client: "redis.asyncio.Redis", prefix: str, *, is_news: bool = False) -> None:
        # A click on a rollback waits for this: with news the table comes in the same round trip as its number.
        fields = ("epoch", "version", "bytes") if is_news else ("epoch", "version")
        stored: list[bytes | None] = await _answer(client.hmget(f"{prefix}:table", *fields))
        self._last_sign_s = self._loop.time()
        if stored[0] is None or stored[1] is None:
            return
        current = self._plane.routes.order
        if current is not None and (int(stored[0]), int(stored[1])) <= current:
            return
        content = stored[2] if is_news else await _answer(client.hget(f"{prefix}:table", "bytes"))
        if content and await self._apply(content):
            await self._beat(client, prefix)
            await asyncio.to_thread(self._plane.routes.store_on_disk, content)

    async def _apply(self, content: bytes) -> bool:
        routes = self._plane.routes
        if len(content) <= _SMALL_BYTES:
            table = routes.read(content)
        else:
            # It takes milliseconds to check and to read: not on the loop, which has streams to serve.
            table = await asyncio.to_thread(routes.read, content)
        return table is not None and routes.apply(table, now_s=self._loop.time())

    async def _beat(self, client: "redis.asyncio.Redis", prefix: str) -> None:
        now_s = self._loop.time()
        self._next_beat_s = now_s + BEAT_S
        beat = build_beat(self._plane, now_s=now_s)
        pipeline = client.pipeline(transaction=False)
        pipeline.set(f"{prefix}:gateway:{self._plane.config.gateway_id}", beat, ex=10)
        pipeline.publish(f"{prefix}:gateways", beat)
        if self._describe is not None:
            state = _build_state(self._describe, now_s)
            pipeline.hset(f"{prefix}:gateway-state", self._plane.config.gateway_id, state)
            pipeline.expire(f"{prefix}:gateway-state", _STATE_KEPT_S)
        await pipeline.execute()

    async def _send_facts(self, client: "redis.asyncio.Redis", prefix: str) -> None:
        batch = self._plane.facts.take(_FACTS_BATCH)
        self._usual_batch += (len(batch) - self._usual_batch) / 16
        # The stream counts entries, the memory facts.
        length = int(_MOST_FACTS_KEPT / max(1.0, self._usual_batch))
        try:
            await client.xadd(
                f"{prefix}:facts",
                {"b": orjson.dumps(batch, option=orjson.OPT_NON_STR_KEYS)},
                maxlen=length,
                approximate=True,
            )
        except (RedisError, OSError, TimeoutError):
            # It may have arrived: counting it as lost is better than counting it twice.
            self._plane.facts.drop(len(batch))
            raise

    async def _send_captures(self, client: "redis.asyncio.Redis", prefix: str) -> None:
        taken = self._plane.captures.take(_CAPTURES_BATCH)
        entries = await asyncio.to_thread(build_entries, taken)
        pipeline = client.pipeline(transaction=False)
        for entry in entries:
            pipeline.xadd(f"{prefix}:captures", {"b": entry}, maxlen=STREAM_LENGTH, approximate=False)
        try:
            await pipeline.execute()
        except (RedisError, OSError, TimeoutError):
            self._plane.captures.drop(len(taken))
            raise

    # Web.
    async def _ask_web(self) -> None:
        url = self._plane.config.web_url
        while url is not None:
            if not self.redis_is_silent:
                await asyncio.sleep(SILENCE_S / 5)
                continue
            applied = False
            try:
                content = await self._fetch_table(url)
                applied = content is not None and await self._apply(content)
                if applied and content is not None:
                    await asyncio.to_thread(self._plane.routes.store_on_disk, content)
                await self._tell_web(url)
            except FetchFailed as exc:
                logger.debug("web not reached", extra={"error": exc.message})
            # What was just applied is acknowledged at once, by the next question.
            await asyncio.sleep(0 if applied else SILENCE_S)

    async def _fetch_table(self, url: str) -> bytes | None:
        """None if there is no newer one. Raises FetchFailed."""
        epoch, version = self._plane.routes.order or (0, 0)
        config = self._plane.config
        path = f"/internal/routing-table?gateway={config.gateway_id}&applied={epoch}.{version}"
        beat = build_beat(self._plane, now_s=self._loop.time())
        headers = {"x-sluice-heartbeat": base64.urlsafe_b64encode(beat).decode()}
        status, content = await fetch(url, path, headers=self._authorization | headers)
        if status == 200:
            return content
        if status != 204:
            raise FetchFailed(f"Web answered {status}.", status=status)
        return None

    async def _tell_web(self, url: str) -> None:
        """What pages show of this process, once a second while they cannot read it from Redis. Raises FetchFailed."""
        now_s = self._loop.time()
        if self._describe is None or now_s < self._next_state_s:
            return
        self._next_state_s = now_s + BEAT_S
        state = await asyncio.to_thread(zlib.compress, _build_state(self._describe, now_s), 1)
        path = f"/internal/gateway-state?gateway={self._plane.config.gateway_id}"
        status, _ = await fetch(url, path, headers=self._authorization, body=state)
        if status != 204:
            raise FetchFailed(f"Web answered {status}.", status=status)

    @property
    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {derive_internal_token(self._plane.config.secret)}"}

    # Disk.
    async def _keep_house(self) -> None:
        config = self._plane.config
        while True:
            with contextlib.suppress(OSError):
                metrics.write_snapshot(self._plane.metrics, config.state_dir, worker=config.worker)
            self._plane.routes.forget_old(self._loop.time())
            await asyncio.sleep(BEAT_S)


def _build_state(describe: Callable[[float], Mapping[str, Any]], now_s: float) -> bytes:
    at = datetime.fromtimestamp(time.time(), UTC).isoformat()
    return orjson.dumps({"at": at, **describe(now_s)}, option=orjson.OPT_NON_STR_KEYS)


async def _go_on(work: Callable[[], Awaitable[None]]) -> None:
    """A fault that nobody expected must not leave a gateway that serves but never hears news again."""
    while True:
        try:
            await work()
            return
        except Exception:
            logger.exception("a loop of the gateway failed; it starts again")
            await asyncio.sleep(BEAT_S)


async def _answer(call: Any) -> Any:
    """redis-py types its asynchronous commands as either a value or an awaitable of it."""
    return await call
