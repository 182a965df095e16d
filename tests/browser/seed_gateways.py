"""What two gateways tell of the seeded pool: a lane at its limit, a filling replica, a breaker on trial."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import redis
from django.conf import settings

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import Lane, RoutingState
from pool.telemetry.store import add_cells

MODEL = "qwen2.5-7b"
REASONS = {"short": "within_target", "mid": "over_target", "long": "within_target"}


def seed_gateways(*, now: datetime, fresh_for: timedelta = timedelta(0)) -> None:
    """Into Redis, as gateways do each second."""
    Lane.objects.filter(name="short").update(settings={"weight": 4}, concurrency=32)
    Lane.objects.filter(name="mid").update(settings={"weight": 2}, ttft_target_ms=800)
    Lane.objects.filter(name="long").update(
        settings={"late_gap_ms": 500, "tokens_per_min": 400_000}, concurrency=2, ttft_target_ms=2000
    )
    for lane, ttft_s in (("short", 0.212), ("mid", 0.94), ("long", 1.71)):
        key = SeriesKey(MODEL, release=1, replica="rk3m9d2q71", lane=lane, tier="standard")
        cell = Cell(counts={"requests": 400}, stages={"ttft": Histogram.of([ttft_s] * 400)})
        add_cells({(key, now): cell})
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        for identity in ("gw-desk-8080", "gw-edge-8080"):
            client.hset(_key(), identity, json.dumps(gateway_state((now + fresh_for).isoformat())))


def clear_gateways() -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(_key())


def _key() -> str:
    return f"sluice:{RoutingState.objects.get(pk=1).installation}:gateway-state"


def gateway_state(at: str) -> dict[str, Any]:
    limits = [
        {"id": f"lane:{MODEL}:long:t", "of": "the lane", "unit": "tokens", "limit": 400_000, "used_here": 131_000,
         "cap_here": 200_000, "used": 262_000},
    ]  # fmt: skip
    tokenizers = {
        f"{MODEL}/1": {"state": "ready", "reason": None},
        f"{MODEL}/2": {"state": "degraded", "reason": "tokenizer_broken"},
    }
    return {
        "at": at,
        "models": {MODEL: _model()},
        "cache": {"models": {MODEL: {"hits": 100, "shared_hits": 9, "coalesced": 9, "misses": 402}}},
        "readers": {"tokenizers": tokenizers},
        "limits": {"processes": 2, "limits": limits},
        "quarantine": {"quarantined": 0},
    }


def _model() -> dict[str, Any]:
    calm = {
        "level": "normal",
        "reason": "never_reached",
        "since_s": 3600.0,
        "used_ratio": 0.43,
        "source": "engine",
    }
    full = {"level": "no_long", "reason": "use_reached_no_long", "since_s": 74.0, "used_ratio": 0.884}
    closed = {"phase": "closed", "reason": "", "since_s": None, "left_s": None, "error_score": 0.004}
    trial = {"phase": "half_open", "reason": "hung", "since_s": 41.2, "left_s": None, "error_score": 0.21}
    lanes = {name: {"limit": 1, "in_flight": 1, "reason": reason} for name, reason in REASONS.items()}
    engine = {"slots": 256, "kv_tokens": 120_000}
    gate = {
        "lanes": _lanes(),
        "replicas": {
            "rk3m9d2q71": {"in_flight": 14, "watermark": calm, "lanes": lanes, **engine},
            "rx8w4c5v2p": {"in_flight": 5, "watermark": full, "lanes": lanes, **engine},
        },
    }
    first = {
        "gate": gate,
        "affinity": {"expected_hit_ratio": 0.412, "engine_hit_ratio": 0.398, "alarm": False},
        "replicas": {
            "rk3m9d2q71": {"breaker": closed, "waiting": 0, "kv_used_ratio": 0.43},
            "rx8w4c5v2p": {"breaker": trial, "waiting": 3, "kv_used_ratio": 0.884},
        },
    }
    second = {
        "gate": {"lanes": {}, "replicas": {}},
        "affinity": {"expected_hit_ratio": 0.38, "engine_hit_ratio": 0.02, "alarm": True},
        "replicas": {},
    }
    return {
        "releases": {"1": first, "2": second},
        "rate_limited": 7,
        "retries": {"requests_per_min": 1240, "retries_per_min": 3, "denied": 0},
        "shadow": {"requests": 61, "tokens": 18_400},
    }


def _lanes() -> dict[str, Any]:
    steady = {"stage": "closed", "reason": "never_open", "since_s": 5400.0, "growth_ratio": 0.01}
    grown = {"stage": "no_batch", "reason": "pending_grows", "since_s": 132.0, "growth_ratio": 0.22}
    return {
        "short": {"limit": 32, "in_flight": 9, "queued": 0, "oldest_wait_s": 0.0, "growth": steady, "refused": {}},
        "mid": {"limit": 8, "in_flight": 8, "queued": 6, "oldest_wait_s": 1.34, "growth": grown,
                "refused": {"shed": 21, "queue_full": 0}},
        "long": {"limit": 2, "in_flight": 2, "queued": 1, "oldest_wait_s": 4.2, "growth": steady,
                 "refused": {"overloaded": 4, "queue_timeout": 2}},
    }  # fmt: skip
