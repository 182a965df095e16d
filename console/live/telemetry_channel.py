"""Listens to the cells that telemetry is filling: Redis' channel of open cells, only while somebody watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import orjson
import redis.asyncio as redis
from django.conf import settings
from django.db import DatabaseError

from console.live.database import run_in_thread
from pool.domain.cells import SeriesKey
from pool.domain.histogram import LAST_BUCKET, Histogram
from pool.models import RoutingState

logger = logging.getLogger(__name__)

RETRY_S = 1.0
SILENCE_S = 2.0
"""Redis is asked for a sign of life when nothing came for so long, and given as long again; until then pages are
"live"."""
MOST_SERIES = 20_000


@dataclass(slots=True)
class OpenCell:
    """One second of one series, whole as of now."""

    at_s: int
    key: SeriesKey
    stages: Mapping[str, Any]
    _made: dict[str, Histogram | None] = field(default_factory=dict)

    def histogram(self, stage: str) -> Histogram | None:
        """None: no sample of this stage."""
        if stage not in self._made:
            content = self.stages.get(stage)
            self._made[stage] = None if content is None else _read_histogram(content)
        return self._made[stage]


class Listener(Protocol):
    def take_cells(self, cells: Iterable[OpenCell]) -> None: ...

    def notice_gap(self) -> None:
        """Messages were lost, or nobody knows whether some were: after each connection, too."""

    def set_up(self, is_up: bool) -> None:
        """Whether Redis is heard."""


async def listen_for_cells(listener: Listener, *, url: str | None = None) -> None:
    """Until cancelled. Reconnects for ever."""
    while True:
        with suppress(redis.RedisError, OSError, DatabaseError, RoutingState.DoesNotExist, TimeoutError):
            await _listen_once(listener, url or settings.REDIS_URL)
        listener.set_up(False)
        await asyncio.sleep(RETRY_S)


async def _listen_once(listener: Listener, url: str) -> None:
    installation = await run_in_thread(lambda: RoutingState.objects.get(pk=1).installation)
    client = redis.Redis.from_url(url, socket_connect_timeout=1.0, socket_timeout=SILENCE_S, retry=None)
    order = MessageOrder()
    async with client, client.pubsub() as channel:
        await channel.subscribe(f"sluice:{installation}:open")
        listener.notice_gap()
        while True:
            message = await channel.get_message(ignore_subscribe_messages=False, timeout=SILENCE_S)
            if message is None:
                # A server that hangs takes connections and says nothing: that is no sign of life.
                async with asyncio.timeout(SILENCE_S):
                    await client.ping()
            listener.set_up(True)
            if message is not None and message["type"] == "message":
                _take(listener, order, message["data"])


def _take(listener: Listener, order: MessageOrder, content: bytes) -> None:
    try:
        body = orjson.loads(content)
        in_order = order.follows(str(body["epoch"]), int(body["seq"]))
        cells = [OpenCell(int(at), _read_key(tuple(key)), cell["stages"]) for at, key, cell in body["cells"]]
    except (ValueError, KeyError, TypeError):
        logger.warning("a message of open cells cannot be read")
        in_order, cells = False, []
    if not in_order:
        listener.notice_gap()
    listener.take_cells(cells)


@dataclass
class MessageOrder:
    """Numbers of messages, each one more than the last within an epoch."""

    epoch: str = ""
    seq: int = 0

    def follows(self, epoch: str, seq: int) -> bool:
        """False: something was lost before this message. The first one follows."""
        before, self.epoch, self.seq = (self.epoch, self.seq), epoch, seq
        return not before[0] or before == (epoch, seq - 1)


@lru_cache(MOST_SERIES)
def _read_key(names: tuple[Any, ...]) -> SeriesKey:
    model, release, replica, lane, tier, label, long_prompt, region = names
    return SeriesKey(
        str(model),
        int(release),
        str(replica),
        str(lane),
        str(tier),
        str(label),
        bool(long_prompt),
        str(region),
    )


def _read_histogram(content: Any) -> Histogram | None:
    try:
        sum_s, pairs = content
        counts = {int(bucket): int(count) for bucket, count in pairs}
    except (ValueError, TypeError):
        return None
    if not counts or min(counts) < 0 or max(counts) > LAST_BUCKET:
        return None
    return Histogram(counts, float(sum_s))
