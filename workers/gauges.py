"""Passes an engine's load on to the gateways, through Redis, whenever its watcher has read it.

A convenience of routing: without Redis, or without a reading, gateways go by what they themselves have sent.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import asdict

import redis
from django.db import DatabaseError, InterfaceError

from pool.models import RoutingState
from pool.ports import EngineLoad
from pool.services.delivery import connect

logger = logging.getLogger(__name__)

PAUSE_S = 2.0
"""After a failure; a watcher must not wait for Redis at each look."""
KEPT_S = 120
_FIELDS = {
    "kv_used_ratio": "kv_usage_ratio",
    "running": "running",
    "waiting": "waiting",
    "cache_queries_tokens": "cache_queries_tokens",
    "cache_hits_tokens": "cache_hits_tokens",
}
"""Name in Redis → name in EngineLoad."""


def dump_load(load: EngineLoad, *, at_ms: int) -> str:
    """`at_ms`: when it was so, on the clock of Redis. What the engine did not say is absent."""
    values = asdict(load)
    told = {short: values[field] for short, field in _FIELDS.items() if values[field] is not None}
    return json.dumps({"at_ms": at_ms, **told})


class GaugeBoard:
    """Safe for many threads; each call is one look of one watcher."""

    def __init__(self, url: str) -> None:
        self._client = connect(url)
        self._lock = threading.Lock()
        self._key: str | None = None
        self._next_s = 0.0

    def publish(self, replica_id: str, generation: int, load: EngineLoad) -> bool:
        """False if nobody will see it. What the engine did not say is absent, not zero."""
        if time.monotonic() < self._next_s:
            return False
        try:
            key = self._find_key()
            if key is None:
                return False
            self._store(key, f"{replica_id}.{generation}", load)
        except (redis.RedisError, OSError, DatabaseError, InterfaceError) as exc:
            self._next_s = time.monotonic() + PAUSE_S
            logger.debug("gauges of %s not passed on: %s", replica_id, type(exc).__name__)
            return False
        return True

    def _store(self, key: str, name: str, load: EngineLoad) -> None:
        # Ages count on the clock of Redis, the one that all hosts share.
        seconds, micros = self._client.time()
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hset(key, name, dump_load(load, at_ms=seconds * 1000 + micros // 1000))
        pipeline.expire(key, KEPT_S)
        pipeline.execute()

    def _find_key(self) -> str | None:
        """None while the installation has no routing state yet."""
        with self._lock:
            if self._key is None:
                found = RoutingState.objects.filter(pk=1).values_list("installation", flat=True).first()
                self._key = f"sluice:{found}:gauges" if found else None
            return self._key
