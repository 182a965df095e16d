"""Block maps of watched replicas: web says in Redis that somebody looks, the replica's worker then puts a map there
twice a second, and each viewer gets the newest one. Without a viewer nothing is asked and nothing is made.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import uuid4
from weakref import WeakKeyDictionary

import redis.asyncio as redis
from django.conf import settings
from django.db import DatabaseError

from console.access import Right
from console.live.block_map_frames import (
    encode_beat,
    encode_map,
    encode_no_segments,
    encode_segments,
    encode_state,
)
from console.live.consumers import Watch, WatchConsumer
from console.live.database import run_in_thread
from console.live.session_rights import find_session_rights
from pool.domain.block_map import BadBlockMap, read_block_map
from pool.domain.errors import PoolError
from pool.models import Replica, RoutingState
from pool.queries.ages import age_of
from pool.services.errors import not_found

logger = logging.getLogger(__name__)

EVERY_S: Final = 0.5
WATCH_S: Final = 5
"""The worker makes maps for so long after each look."""
PATIENCE_S: Final = 5.0
"""Without a map for so long, its absence is explained."""
SEGMENTS_PATIENCE_S: Final = 10.0
"""An engine writes its allocator's segments at its next step; an idle one makes none."""
ASK_SEGMENTS: Final = '{"type":"segments"}'
STALE_AFTER: Final = timedelta(seconds=3)
"""A scan older than this is not the present: the engine hangs, or computes nothing."""


class MapSource(Protocol):
    """Where maps come from; raises OSError (or Redis' own errors) when nobody can be asked."""

    async def read_maps(self, replicas: Sequence[str]) -> list[bytes | None]:
        """Says that somebody watches these and returns what there is, in this order."""

    async def read_absence(self, replica: str) -> str:
        """Why the engine gives no map, as its worker says; empty: it does not say."""

    async def read_segments(self, replica: str, wish: str) -> bytes | None:
        """Says once more that somebody wishes the allocator's segments, and returns those that answer this wish."""

    async def close(self) -> None: ...


class RedisMaps:
    def __init__(self, url: str, installation: str) -> None:
        self._client = redis.Redis.from_url(url, socket_connect_timeout=0.5, socket_timeout=1.0, retry=None)
        self._prefix = f"sluice:{installation}:"

    async def read_maps(self, replicas: Sequence[str]) -> list[bytes | None]:
        pipeline = self._client.pipeline(transaction=False)
        for replica in replicas:
            pipeline.set(f"{self._prefix}watch:{replica}", b"1", ex=WATCH_S)
        pipeline.mget([f"{self._prefix}blocks:{replica}" for replica in replicas])
        found: list[bytes | None] = (await pipeline.execute())[-1]
        return found

    async def read_absence(self, replica: str) -> str:
        entries = self._client.hscan_iter(f"{self._prefix}replicas", match=f"{replica}.*", count=1000)
        newest = {int(name.rpartition(b".")[2]): content async for name, content in entries}
        with suppress(ValueError, TypeError, AttributeError):
            return str(json.loads(newest[max(newest)]).get("missing") or "")[:500]
        return ""

    async def read_segments(self, replica: str, wish: str) -> bytes | None:
        await self._client.set(f"{self._prefix}segments-wish:{replica}", wish, ex=WATCH_S)
        found = await self._client.get(f"{self._prefix}segments:{replica}")
        return found if isinstance(found, bytes) and wish_of(found) == wish else None

    async def close(self) -> None:
        await self._client.aclose()


@dataclass
class MapTopic:
    """One replica that somebody watches. `frame`: the newest; a viewer that is slow misses those between."""

    replica: str
    seq: int = 0
    frame: str | bytes = field(default_factory=lambda: encode_state("waiting"))
    failure: PoolError | None = None
    viewers: set[MapWatch] = field(default_factory=set)
    missed_s: float = 0.0
    wish: str = ""
    """Number of the wish for the allocator's segments; empty: nobody waits for them."""
    wished_s: float = 0.0

    def ask_segments(self) -> None:
        """One wish at a time, however many viewers ask: each costs the engine some milliseconds."""
        if not self.wish:
            self.wish, self.wished_s = uuid4().hex, 0.0

    def tell_segments(self, frame: str) -> None:
        self.wish = ""
        for viewer in self.viewers:
            viewer.tell(frame)

    def show(self, frame: str | bytes) -> None:
        """Says nothing twice."""
        if frame == self.frame:
            return
        self.seq, self.frame = self.seq + 1, frame
        for viewer in self.viewers:
            viewer.wake()


class MapWatch:
    """One viewer's place at a topic: it holds a number and no frames."""

    def __init__(self, maps: BlockMaps, topic: MapTopic) -> None:
        self._maps = maps
        self._topic = topic
        self._sent_seq = -1
        self._news = ""
        self._woken = asyncio.Event()
        self._woken.set()

    @property
    def failure(self) -> PoolError | None:
        return self._topic.failure

    async def wait(self, *, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()

    def take(self) -> str | bytes:
        if self._news:
            # It stays woken: the map's turn comes next.
            news, self._news = self._news, ""
            return news
        self._woken.clear()
        if self._sent_seq == self._topic.seq:
            return encode_beat(self._sent_seq)
        self._sent_seq = self._topic.seq
        return self._topic.frame

    def ask_snapshot(self) -> None:
        self._sent_seq = -1
        self.wake()

    def ask_segments(self) -> None:
        self._topic.ask_segments()

    def tell(self, frame: str) -> None:
        """A frame of its own, beside the map; a newer one takes its place."""
        self._news = frame
        self.wake()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._maps.leave(self._topic, self)


OpenSource = Callable[[], Awaitable[MapSource]]


async def open_redis_maps() -> MapSource:
    installation = await run_in_thread(lambda: RoutingState.objects.get(pk=1).installation)
    return RedisMaps(settings.REDIS_URL, installation)


class BlockMaps:
    """Lives in one event loop; see `find_block_maps`."""

    def __init__(self, open_source: OpenSource = open_redis_maps, *, every_s: float = EVERY_S) -> None:
        self._open_source = open_source
        self._every_s = every_s
        self._topics: dict[str, MapTopic] = {}
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, replica: str) -> MapWatch:
        topic = self._topics.setdefault(replica, MapTopic(replica))
        viewer = MapWatch(self, topic)
        topic.viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return viewer

    def leave(self, topic: MapTopic, viewer: MapWatch) -> None:
        topic.viewers.discard(viewer)
        if not topic.viewers and self._topics.get(topic.replica) is topic:
            del self._topics[topic.replica]

    async def _run(self) -> None:
        source: MapSource | None = None
        try:
            while self._topics:
                try:
                    source = source or await self._open_source()
                    await self._look(source)
                except (redis.RedisError, OSError, DatabaseError, RoutingState.DoesNotExist, TimeoutError):
                    for topic in self._topics.values():
                        topic.show(encode_state("unreachable"))
                await asyncio.sleep(self._every_s)
        finally:
            if source is not None:
                await source.close()

    async def _look(self, source: MapSource) -> None:
        topics = list(self._topics.values())
        maps = await source.read_maps([topic.replica for topic in topics])
        for topic in topics:
            if topic.wish:
                await self._read_segments(source, topic)
        for topic, content in zip(topics, maps, strict=True):
            if content is not None:
                topic.missed_s = 0.0
                topic.show(await asyncio.to_thread(_encode, content, topic.seq + 1))
                continue
            topic.missed_s += self._every_s
            reason = await source.read_absence(topic.replica) if topic.missed_s >= PATIENCE_S else ""
            if topic.missed_s >= PATIENCE_S or not isinstance(topic.frame, bytes):
                topic.show(
                    encode_state("missing" if topic.missed_s >= PATIENCE_S else "waiting", reason=reason)
                )

    async def _read_segments(self, source: MapSource, topic: MapTopic) -> None:
        found = await source.read_segments(topic.replica, topic.wish)
        topic.wished_s += self._every_s
        if found is not None:
            topic.tell_segments(encode_segments(found))
        elif topic.wished_s >= SEGMENTS_PATIENCE_S:
            topic.tell_segments(encode_no_segments())


def wish_of(content: bytes) -> str:
    with suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(content).get("wish") or "")
    return ""


def _encode(content: bytes, seq: int) -> str | bytes:
    try:
        found = read_block_map(content)
    except BadBlockMap as error:
        return encode_state("missing", reason=error.message)
    now = datetime.now(UTC)
    scanned = None if found.age_s is None else now - timedelta(seconds=found.age_s)
    return encode_map(found, seq=seq, scanned=age_of(scanned, now=now, stale_after=STALE_AFTER))


_maps: WeakKeyDictionary[asyncio.AbstractEventLoop, BlockMaps] = WeakKeyDictionary()


def find_block_maps() -> BlockMaps:
    """The one of the running loop."""
    return _maps.setdefault(asyncio.get_running_loop(), BlockMaps())


class BlockMapConsumer(WatchConsumer):
    """`/live/blocks/<replica>/`. In: `{"type": "segments"}` too, from those who may operate."""

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data == ASK_SEGMENTS and self._pump is not None:
            watch = self.watch
            if isinstance(watch, MapWatch) and await find_session_rights().may(self.scope, Right.OPERATE):
                watch.ask_segments()
            return
        await super().receive(text_data, bytes_data)

    async def open_watch(self) -> Watch:
        replica: str = self.scope["url_route"]["kwargs"]["replica"]
        if not await run_in_thread(lambda: Replica.objects.filter(pk=replica).exists()):
            raise not_found("replica", replica)
        return find_block_maps().subscribe(replica)
