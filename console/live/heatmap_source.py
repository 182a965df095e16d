"""What a live heatmap reads besides the channel: stored seconds, and whether telemetry keeps up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import redis.asyncio as redis
from django.conf import settings

from console.live.database import run_in_thread
from console.live.heatmap_window import Wanted
from pool.domain.cells import SeriesKey
from pool.domain.histogram import Histogram
from pool.queries.cells import CellFilter
from pool.queries.ingestion import find_position, list_seconds
from pool.queries.models import find_model
from pool.services.errors import not_found

LONGEST_READ_S = 10.0
BEHIND_AFTER_S = 3.0
"""Telemetry reads at once; an entry that lies unread for so long says that it does not keep up or is gone."""


class Source:
    async def read_seconds(
        self, wanted: Wanted, start_s: float, end_s: float
    ) -> list[tuple[int, SeriesKey, Histogram]]:
        """Raises NotFound when the model is gone, DatabaseError, TimeoutError."""
        async with asyncio.timeout(LONGEST_READ_S):
            return await run_in_thread(lambda: _read_seconds(wanted, start_s, end_s))

    async def find_unread_since(self, now_s: float) -> float | None:
        """Since when reported requests lie unread; None: telemetry keeps up. Raises RedisError, DatabaseError."""
        stream, position = await run_in_thread(lambda: find_position("facts"))
        async with redis.Redis.from_url(
            settings.REDIS_URL, socket_connect_timeout=0.5, socket_timeout=1.0, retry=None
        ) as client:
            unread = cast(list[Any], await client.xrange(stream, min=f"({position}", count=1))
        if not unread:
            return None
        since_s = int(unread[0][0].split(b"-")[0]) / 1000
        return since_s if now_s - since_s > BEHIND_AFTER_S else None


def _read_seconds(wanted: Wanted, start_s: float, end_s: float) -> list[tuple[int, SeriesKey, Histogram]]:
    if find_model(wanted.model) is None:
        raise not_found("model", wanted.model)
    return list_seconds(
        filter_of(wanted),
        wanted.stage,
        start=datetime.fromtimestamp(int(start_s), tz=UTC),
        end=datetime.fromtimestamp(end_s, tz=UTC),
    )


def filter_of(wanted: Wanted) -> CellFilter:
    def one(value: str) -> tuple[str, ...]:
        return (value,) if value else ()

    return CellFilter(
        model=wanted.model,
        releases=() if wanted.release is None else (wanted.release,),
        replicas=one(wanted.replica),
        lanes=one(wanted.lane),
        tiers=one(wanted.tier),
        labels=one(wanted.label),
        long_prompt=wanted.long_prompt,
    )
