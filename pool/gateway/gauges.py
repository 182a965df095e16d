"""What engines say of themselves, as their node's worker passed it on through Redis. Missing is None, never 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

import orjson

FORGOTTEN_S = 60.0
"""The entry of an engine that nobody measured for so long is taken out of Redis."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """None = the engine did not say."""

    kv_used_ratio: float | None
    running: int | None
    waiting: int | None
    cache_queries_tokens: float | None = None
    cache_hits_tokens: float | None = None
    """Counters since its start: prompt tokens looked up in its prefix cache, and found there."""


def read_gauges(name: bytes, content: bytes, redis_ms: float) -> tuple[str, int, Gauges, float] | None:
    """Replica, generation, gauges, age in seconds; None for an entry to be taken out: too old, or of no known shape."""
    try:
        replica_id, _, generation = name.decode().rpartition(".")
        fields = orjson.loads(content)
        age_s = (redis_ms - fields["at_ms"]) / 1000
        if age_s > FORGOTTEN_S:
            return None
        gauges = Gauges(
            kv_used_ratio=_number(fields.get("kv_used_ratio")),
            running=_whole(fields.get("running")),
            waiting=_whole(fields.get("waiting")),
            cache_queries_tokens=_number(fields.get("cache_queries_tokens")),
            cache_hits_tokens=_number(fields.get("cache_hits_tokens")),
        )
        return replica_id, int(generation), gauges, max(0.0, age_s)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _number(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable and value >= 0 else None  # type: ignore[arg-type,operator]


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
