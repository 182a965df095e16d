"""What pages see of a gate: limits, queues and guards of each lane and replica, each with its reason."""

from collections.abc import Iterable, Sequence
from typing import Any

from pool.gateway.places import Lane, Place


def describe_gate(lanes: Sequence[Lane], places: Iterable[Place], now_s: float) -> dict[str, Any]:
    """JSON: `{"lanes": {name: …}, "replicas": {id: …}}`. Of this process; None where something is unknown."""
    known = list(places)
    return {
        "lanes": {lane.name: _describe_lane(lane, now_s) for lane in lanes},
        "replicas": {place.replica.id: _describe_place(place, lanes, now_s) for place in known},
    }


def _describe_lane(lane: Lane, now_s: float) -> dict[str, Any]:
    worst = max(lane.places, key=_level, default=None)
    return {
        "limit": sum(place.lane_limit(lane) for place in lane.places),
        "in_flight": lane.in_flight,
        "queued": len(lane.queue),
        "queue_limit": lane.queue_limit,
        "oldest_wait_s": round(lane.queue.oldest_wait_s(now_s), 3),
        "ttft_target_s": lane.target_s,
        "offered_tokens_per_s": round(lane.rate_tokens_per_s(now_s), 1),
        "hold_limit": lane.hold_limit,
        "watermark": None if worst is None else worst.watermark.describe(now_s),
        "growth": lane.growth.describe(now_s),
        "restrictions": lane.restraint.describe(now_s),
        "refused": dict(lane.refused),
    }


def _describe_place(place: Place, lanes: Sequence[Lane], now_s: float) -> dict[str, Any]:
    replica, clock = place.replica, place.clock
    wait_s = max(0.0, clock.busy_until_s - now_s) if replica.prefill_tokens else 0.0
    return {
        "in_flight": replica.in_flight,
        "in_flight_tokens": replica.in_flight_tokens,
        "slots": replica.slots,
        "kv_tokens": replica.kv_tokens,
        "prefill_tokens": replica.prefill_tokens,
        "prefill_wait_s": round(wait_s, 3),
        "prefill_tokens_per_s": round(clock.speed_tokens_per_s, 1) if clock.is_measured else None,
        "watermark": place.watermark.describe(now_s),
        "lanes": {
            lane.name: {
                "limit": place.lane_limit(lane),
                "whole_limit": round(place.limits[lane.name].limit, 1),
                "in_flight": replica.lane_in_flight.get(lane.name, 0),
                "reason": place.limits[lane.name].reason,
            }
            for lane in lanes
            if replica.lane in (None, lane.name)
        },
    }


def _level(place: Place) -> int:
    return place.watermark.level
