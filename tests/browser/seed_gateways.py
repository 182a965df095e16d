"""What two gateways tell of the seeded pool: a lane at its limit, a filling replica, a breaker on trial."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import redis
from django.conf import settings

from pool.domain.histogram import Histogram
from pool.models import Lane, RoutingState, TrafficCell


def seed_gateways(*, now: datetime, fresh_for: timedelta = timedelta(0)) -> None:
    """Into Redis, as gateways do each second."""
    Lane.objects.filter(name="short").update(settings={"weight": 4}, concurrency=32)
    Lane.objects.filter(name="mid").update(settings={"weight": 2}, ttft_target_ms=800)
    Lane.objects.filter(name="long").update(
        settings={"late_gap_ms": 500, "tokens_per_min": 400_000}, concurrency=2, ttft_target_ms=2000
    )
    for lane, ttft_s in (("short", 0.212), ("mid", 0.94), ("long", 1.71)):
        TrafficCell.objects.create(
            at=now, model="qwen2.5-7b", release=1, replica="rk3m9d2q71", lane=lane, tier="standard",
            requests=400, ttft=Histogram.of([ttft_s] * 400).to_bytes(), e2e=Histogram().to_bytes(),
        )  # fmt: skip
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        for identity in ("gw-desk-8080", "gw-edge-8080"):
            client.hset(_key(), identity, json.dumps(gateway_state((now + fresh_for).isoformat())))


def clear_gateways() -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(_key())


def _key() -> str:
    return f"sluice:{RoutingState.objects.get(pk=1).installation}:gateway-state"


def gateway_state(at: str) -> dict[str, Any]:
    return {"at": at, "models": {"qwen2.5-7b": _model()}, "quarantine": {"quarantined": 0}}


def _model() -> dict[str, Any]:
    closed = {"phase": "closed", "reason": "", "since_s": None, "left_s": None, "error_score": 0.004}
    trial = {"phase": "half_open", "reason": "hung", "since_s": 41.2, "left_s": None, "error_score": 0.21}
    calm = {"level": "normal", "reason": "", "since_s": 3600.0}
    full = {"level": "no_long", "reason": "use_reached_no_long", "since_s": 74.0}
    return {
        "releases": {
            "1": {
                "gate": {"lanes": _lanes(), "watermark": full},
                "affinity": {"expected_hit_ratio": 0.412, "engine_hit_ratio": 0.398, "alarm": False},
                "tokenizer": {"state": "ready", "reason": ""},
                "replicas": {
                    "rk3m9d2q71": _replica(14, 0.43, breaker=closed, watermark=calm),
                    "rx8w4c5v2p": _replica(11, 0.884, breaker=trial, watermark=full),
                },
            },
            "2": {
                "gate": {"lanes": {}},
                "affinity": {"expected_hit_ratio": 0.38, "engine_hit_ratio": 0.02, "alarm": True},
                "tokenizer": {"state": "degraded", "reason": "tokenizer.json cannot be read: line 1"},
                "replicas": {},
            },
        },
        "cache": {"hits": 118, "misses": 402, "coalesced": 9},
        "retries": {"requests_per_min": 1240, "retries_per_min": 3, "denied": 0},
        "shadow": {"requests": 61, "tokens": 18_400},
    }


def _replica(in_flight: int, used: float, **standing: dict[str, Any]) -> dict[str, Any]:
    return {"in_flight": in_flight, "waiting": 0, "kv_used_ratio": used, **standing}


def _lanes() -> dict[str, Any]:
    steady = {"stage": "closed", "reason": "", "since_s": 5400.0, "growth_ratio": 0.01}
    grown = {"stage": "no_batch", "reason": "pending_grows", "since_s": 132.0, "growth_ratio": 0.22}
    return {
        "short": {"limit": 64, "in_flight": 9, "queued": 0, "oldest_wait_s": None, "growth": steady, "refused": {}},
        "mid": {"limit": 16, "in_flight": 8, "queued": 6, "oldest_wait_s": 1.34, "growth": grown,
                "refused": {"shed": 21, "queue_full": 0}},
        "long": {"limit": 4, "in_flight": 2, "queued": 1, "oldest_wait_s": 4.2, "growth": steady,
                 "refused": {"overloaded": 4, "queue_timeout": 2}},
    }  # fmt: skip
