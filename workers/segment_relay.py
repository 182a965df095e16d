"""Segments of torch's allocator for a page that asks: passes the wish to the engine and what it wrote to Redis.

The engine writes them beside its step ring at its next step; an idle engine has none, so it may take a while.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from pool.services.delivery import connect
from workers.engine_ring import RingReader
from workers.plugin.sluice_engine.ring import SEGMENTS_NAME

logger = logging.getLogger(__name__)

KEPT_S: Final = 30
MOST_BYTES: Final = 4_000_000
"""What the plug-in's own bounds (2,000 segments, 20,000 blocks) stay far below."""


@dataclass(frozen=True)
class Wish:
    """`number`: as the page numbered it. `seen`: which file lay there when the engine was asked; 0: none."""

    number: bytes
    seen: int


@dataclass
class SegmentRelay:
    """For one thread."""

    url: str
    wishes: dict[str, Wish] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._client = connect(self.url)

    def follow(self, prefix: str, engines: Mapping[str, tuple[RingReader, str]]) -> None:
        """`engines`: ring and folder of each replica that somebody watches. Without Redis nothing happens."""
        try:
            numbers: Any = self._client.mget([f"{prefix}segments-wish:{replica}" for replica in engines])
            for (replica, (reader, folder)), number in zip(engines.items(), numbers, strict=True):
                if number is not None:
                    self._serve(f"{prefix}segments:{replica}", replica, number, reader, folder)
        except (redis.RedisError, OSError) as exc:
            logger.debug("segments not passed on: %s", type(exc).__name__)

    def _serve(self, key: str, replica: str, number: bytes, reader: RingReader, folder: str) -> None:
        path = os.path.join(folder, SEGMENTS_NAME)
        wish = self.wishes.get(replica)
        if wish is None or wish.number != number:
            self.wishes[replica] = Wish(number, stamp_of(path))
            reader.ask_for_segments()
        elif stamp_of(path) not in (0, wish.seen):
            self._client.set(key, read_segments(path, number), ex=KEPT_S)


def stamp_of(path: str) -> int:
    """Tells one file from the next in its place; 0: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0
    return found.st_mtime_ns ^ found.st_ino


def read_segments(path: str, number: bytes) -> str:
    """What the engine wrote, with the number of the wish; what cannot be read is `absent` with the reason."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(MOST_BYTES))
        if not isinstance(content, dict):
            raise ValueError("no object")
        body = {name: content[name] for name in ("segments", "left_out", "absent") if name in content}
    except (OSError, ValueError, TypeError):
        body = {"absent": "The engine's answer cannot be read."}
    return json.dumps({"wish": number.decode(errors="replace"), **body}, separators=(",", ":"))
