"""Reads the streams of facts and samples from Redis, from where the last reading ended, and cuts off what is stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import redis

logger = logging.getLogger(__name__)

COUNT: Final = 300
"""Entries of each stream in one answer: samples of a large node are 100 kB each."""
KEPT_S: Final = 90.0
"""Stored entries stay this long: a restart reads engines' times again that wait for their fact (`joining.py`)."""

Entry = tuple[bytes, dict[bytes, bytes]]


def connect(url: str) -> redis.Redis:
    """A client that fails within seconds instead of hanging."""
    return redis.Redis.from_url(url, socket_connect_timeout=0.5, socket_timeout=3.0, retry=None)


def read(
    client: redis.Redis, positions: Mapping[str, str], *, block_ms: int | None
) -> dict[str, list[Entry]]:
    """Up to COUNT entries of each stream. `block_ms` None: does not wait."""
    answer = client.xread(cast(Any, dict(positions)), count=COUNT, block=block_ms)
    return {name.decode(): entries for name, entries in cast(list[tuple[bytes, list[Entry]]], answer or [])}


def was_emptied(client: redis.Redis, stream: str, position: str) -> bool:
    """A Redis that lost its data counts its entries from the clock again; a clock that was set back meanwhile would
    hide new entries for ever."""
    newest = cast(list[Entry], client.xrevrange(stream, count=1))
    return bool(newest) and order_of(newest[0][0].decode()) < order_of(position)


@dataclass
class Losses:
    """Compares how many entries a stream got with how many of them were read, whenever all were read that are there."""

    added: int | None = None
    read: int = 0

    def count(self, client: redis.Redis, stream: str, *, position: str, read: int) -> int:
        """Entries that were cut off unread since this was last asked. `read`: so far, by this process."""
        try:
            found: Any = client.xinfo_stream(stream)
        except redis.ResponseError:  # no such stream
            self.added = None
            return 0
        if order_of(found["last-generated-id"].decode()) != order_of(position):
            return 0
        added = int(found["entries-added"])
        before, since = self.added, read - self.read
        self.added, self.read = added, read
        # Counted less than before: another stream of the same name, or another count.
        return 0 if before is None or added < before or since < 0 else max(0, added - before - since)


def trim(client: redis.Redis, stream: str, *, stored: str, now_s: float) -> None:
    """Cuts off what is stored and old: the streams lie in Redis' bounded memory."""
    milliseconds, sequence = min(order_of(stored), (int((now_s - KEPT_S) * 1000), 0))
    if milliseconds > 0:
        # Exactly, and the last one too: a full Redis takes no new entry that would let an old large one go.
        client.xtrim(stream, minid=cast(Any, f"{milliseconds}-{sequence + 1}"), approximate=False)


def read_recent(client: redis.Redis, stream: str, *, until: str, now_s: float) -> list[Entry]:
    """Stored entries of the last KEPT_S, oldest first, up to `until`."""
    start = max(0, int((now_s - KEPT_S) * 1000))
    return cast(list[Entry], client.xrange(stream, min=start, max=until, count=20_000))


def order_of(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)
