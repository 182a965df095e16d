"""Sends this node's samples to Redis and shows who watches a block map. Without Redis they are dropped and counted."""

from __future__ import annotations

import base64
import json
import logging
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

import redis
from django.db import DatabaseError, InterfaceError

from pool.models import RoutingState
from pool.ports import EngineLoad
from pool.services.delivery import connect
from workers.gauges import KEPT_S as GAUGES_KEPT_S
from workers.gauges import dump_load
from workers.ring_records import BlockMap

Loads = Mapping[str, tuple[EngineLoad, float]]
logger = logging.getLogger(__name__)

MOST_ENTRIES: Final = 20_000
"""About three hours of one node, and ten minutes of twenty: telemetry reads within a second."""
MOST_BYTES: Final = 64 << 20
"""A quarter of what the embedded server may hold: samples of a large node are 100 kB each."""
KEPT_S: Final = 60
"""The newest states of replicas, after the last node that sends any."""
MAP_KEPT_S: Final = 5
PAUSE_S: Final = 2.0
"""After a failure: the next looks at engines must not wait for Redis."""


@dataclass
class SampleBoard:
    """For one thread. `sent` and `dropped` count samples (one of all replicas each)."""

    url: str
    sent: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        self._client = connect(self.url)
        self._prefix = ""
        self._next_s = 0.0
        self._redis_ahead_ms = 0.0
        self._usual_bytes = 0.0

    def send(
        self,
        sample: Mapping[str, Any],
        states: Mapping[str, Mapping[str, Any]],
        gone: Sequence[str],
        loads: Loads = MappingProxyType({}),
    ) -> frozenset[str] | None:
        """The replicas whose block map somebody watches. None when the sample was dropped.

        `states`: newest state by `<replica>.<generation>`; `gone`: such names that are over; `loads`: for the
        gateways, with the age of each in seconds.
        """
        if time.monotonic() < self._next_s or not self._find_prefix():
            self.dropped += 1
            return None
        try:
            watched = self._send(sample, states, gone, loads)
        except (redis.RedisError, OSError) as exc:
            self._note_failure(exc)
            self.dropped += 1
            return None
        self.sent += 1
        return watched

    def put_maps(self, maps: Mapping[str, BlockMap]) -> None:
        """Each under its replica's id, for as long as a page that reads it may be late."""
        try:
            pipeline = self._client.pipeline(transaction=False)
            for replica, found in maps.items():
                content = json.dumps(dump_map(found, at_ms=self.redis_ms()))
                pipeline.set(f"{self._prefix}blocks:{replica}", content, ex=MAP_KEPT_S)
            pipeline.execute()
        except (redis.RedisError, OSError) as exc:
            self._note_failure(exc)

    @property
    def prefix(self) -> str:
        """Of this installation's names in Redis; empty until it was told."""
        return self._prefix

    def redis_ms(self) -> int:
        """Now, on the clock of Redis: the one that all hosts share; known since the last sample."""
        return int(time.time() * 1000 + self._redis_ahead_ms)

    def _send(
        self,
        sample: Mapping[str, Any],
        states: Mapping[str, Mapping[str, Any]],
        gone: Sequence[str],
        loads: Loads,
    ) -> frozenset[str]:
        pipeline = self._client.pipeline(transaction=False)
        content = json.dumps(sample)
        self._usual_bytes += (len(content) - self._usual_bytes) / (16 if self._usual_bytes else 1)
        # The stream counts entries, the memory bytes. Of several nodes the one with the largest samples decides.
        length = int(min(MOST_ENTRIES, MOST_BYTES / self._usual_bytes))
        pipeline.xadd(f"{self._prefix}samples", {"b": content}, maxlen=max(1, length), approximate=True)
        key, at_ms = f"{self._prefix}replicas", self.redis_ms()
        if loads:
            self._add_loads(pipeline, loads, at_ms)
        if states:
            pipeline.hset(
                key, mapping={name: json.dumps({"at_ms": at_ms, **one}) for name, one in states.items()}
            )
        if gone:
            pipeline.hdel(key, *gone)
        pipeline.expire(key, KEPT_S)
        replicas = [name.rpartition(".")[0] for name in states]
        if replicas:
            pipeline.mget([f"{self._prefix}watch:{replica}" for replica in replicas])
        sent_ms = time.time() * 1000
        answers = pipeline.execute()
        self._redis_ahead_ms = int(cast(bytes, answers[0]).partition(b"-")[0]) - sent_ms
        watches = answers[-1] if replicas else []
        return frozenset(name for name, watch in zip(replicas, watches, strict=True) if watch is not None)

    def _add_loads(self, pipeline: Any, loads: Loads, at_ms: int) -> None:
        gauges = f"{self._prefix}gauges"
        told = {
            name: dump_load(load, at_ms=at_ms - int(age_s * 1000)) for name, (load, age_s) in loads.items()
        }
        pipeline.hset(gauges, mapping=told)
        pipeline.expire(gauges, GAUGES_KEPT_S)

    def _find_prefix(self) -> str:
        """Empty while the installation has no routing state yet, or PostgreSQL has not said so since the start."""
        if not self._prefix:
            try:
                found = RoutingState.objects.filter(pk=1).values_list("installation", flat=True).first()
                self._prefix = f"sluice:{found}:" if found else ""
            except (DatabaseError, InterfaceError) as exc:
                self._note_failure(exc)
        return self._prefix

    def _note_failure(self, exc: Exception) -> None:
        self._next_s = time.monotonic() + PAUSE_S
        logger.debug("samples not sent: %s", type(exc).__name__)


def dump_map(found: BlockMap, *, at_ms: int) -> dict[str, Any]:
    return {
        "at_ms": at_ms,
        # Of the scan: a hung engine's map is sent anew and stays old.
        "age_s": max(0.0, time.monotonic() - found.at_s),
        "block_size": found.block_size_tokens,
        "states": _pack(found.states),
        "owners": _pack(found.owners),
        "requests": [
            {"id": one.request_id, "blocks": one.blocks, "tokens": one.tokens, "tail_tokens": one.tail_tokens}
            for one in found.requests
        ],
        "runs_of_free": {str(length): count for length, count in found.runs_of_free.items()},
    }


def _pack(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 1)).decode()
