"""How the gateways hold back and spread a model's requests now, summed over all gateway processes.

A figure that nobody told is None. Levels and breakers are the worst of what any gateway says, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pool.domain.histogram import Histogram
from pool.models import Replica
from pool.queries.cells import CellFilter, find_series, list_stage
from pool.queries.gateway_states import GatewayState, figure, list_gateway_states, part, word
from pool.queries.lanes import LaneRow
from pool.queries.traffic import WINDOW

LEVELS = ("normal", "warn", "no_long", "short_only")
STAGES = ("closed", "no_batch", "no_standard")
BREAKERS = ("closed", "half_open", "open")
LIMIT_REASONS = ("over_target", "all_slots", "within_target", "start")
"""The most telling first."""
TOKENIZERS = ("ready", "estimated", "loading", "degraded")


@dataclass(frozen=True)
class Standing:
    """A state machine as the gateway that sees it worst tells it; `state` empty: nobody told."""

    state: str
    reason: str
    since_s: float | None
    left_s: float | None = None
    """Until it tries to leave the state; None: it does not wait for a time."""


@dataclass(frozen=True)
class LaneControl:
    lane: str
    release: int
    limit: float | None
    """Requests at once that admission lets in now, over the release's replicas."""
    limit_reason: str
    """Why an adaptive limit moved last: over_target, within_target, all_slots; empty: unknown."""
    in_flight: int | None
    queued: int | None
    oldest_wait_s: float | None
    growth: Standing
    refused: dict[str, int]
    """By error code, since the gateways' start."""
    ttft_target_ms: int
    ttft_p50_s: float | None
    """Of the last five minutes."""
    samples: int


@dataclass(frozen=True)
class ReplicaControl:
    id: str
    release: int
    in_flight: int | None
    slots: int | None
    """Requests that its engine runs at once."""
    waiting: int | None
    kv_used_ratio: float | None
    kv_tokens: int | None
    """That its KV cache holds."""
    error_score: float | None
    breaker: Standing
    watermark: Standing


@dataclass(frozen=True)
class LimitUse:
    """A limit per minute of the model or of one of its lanes."""

    lane: str | None
    """None: the model's own."""
    unit: str
    """requests or tokens."""
    limit: int
    used: int
    """In the last minute, by all gateways."""


@dataclass(frozen=True)
class ReleaseControl:
    release: int
    tokenizer: Standing
    expected_hit_ratio: float | None
    """Prompt tokens that the gateway expected in a replica's prefix cache; None: nothing to compare yet."""
    engine_hit_ratio: float | None
    """Those that the engines said they had."""
    affinity_alarm: bool


@dataclass(frozen=True)
class TrafficControl:
    gateways: int | None
    """Processes that told of now; None: nobody can be asked."""
    lanes: tuple[LaneControl, ...]
    releases: tuple[ReleaseControl, ...]
    replicas: tuple[ReplicaControl, ...]
    limits: tuple[LimitUse, ...]
    rate_limited: int | None
    """Requests refused by a limit per minute of their key, lane or model, since the gateways' start."""
    cache_hits: int | None
    """Deterministic requests that were answered without an engine, since the gateways' start."""
    cache_misses: int | None
    requests_per_min: float | None
    retries_per_min: float | None
    retries_denied: int | None
    shadow_requests: int | None
    shadow_tokens: int | None
    """What shadow requests cost: prompt and answer tokens that nobody reads."""
    quarantined: int | None


@dataclass(frozen=True)
class ShadowCost:
    """What shadow requests of a model did since its gateways started; None: nobody told."""

    requests: int | None
    tokens: int | None
    """Prompt and answer tokens that nobody reads."""
    requests_per_min: float | None
    """Of clients, in the last minute."""


def load_traffic_control(model: str, *, lanes: Sequence[LaneRow], now: datetime) -> TrafficControl:
    """3 queries and one question to Redis."""
    states = list_gateway_states(now=now)
    replicas = list(
        Replica.objects.filter(release__model__name=model, phase__in=("ready", "draining"))
        .select_related("release")
        .order_by("id")
    )
    ttft = _recent_ttft(model, now=now)
    return build_traffic_control(states, model=model, lanes=lanes, replicas=replicas, ttft=ttft)


def load_shadow_cost(model: str, *, now: datetime) -> ShadowCost:
    """1 query and one question to Redis."""
    models = [part(state.body, "models", model) for state in list_gateway_states(now=now) or ()]
    shadows, retries = ([part(told, name) for told in models] for name in ("shadow", "retries"))
    return ShadowCost(
        requests=_total(shadows, "requests"),
        tokens=_total(shadows, "tokens"),
        requests_per_min=_sum(retries, "requests_per_min"),
    )


def build_traffic_control(
    states: tuple[GatewayState, ...] | None,
    *,
    model: str,
    lanes: Sequence[LaneRow],
    replicas: Sequence[Replica],
    ttft: Mapping[tuple[int, str], Histogram],
) -> TrafficControl:
    bodies = [state.body for state in states or ()]
    models = [part(body, "models", model) for body in bodies]
    serving = {replica.release.number for replica in replicas}
    numbers = serving | {int(name) for told in models for name in part(told, "releases") if name.isdecimal()}
    releases = {
        number: [part(told, "releases", str(number)) for told in models] for number in sorted(numbers)
    }
    retries, shadows = ([part(told, name) for told in models] for name in ("retries", "shadow"))
    caches = [part(body, "cache", "models", model) for body in bodies]
    tokenizers = [part(body, "readers", "tokenizers") for body in bodies]
    return TrafficControl(
        gateways=None if states is None else len(states),
        lanes=tuple(
            _lane(lane, number, told, ttft.get((number, lane.name)))
            for number, told in releases.items()
            for lane in lanes
            if number in serving or any(part(one, "gate", "lanes", lane.name) for one in told)
        ),
        releases=tuple(
            _release(number, told, [part(one, f"{model}/{number}") for one in tokenizers])
            for number, told in releases.items()
        ),
        replicas=tuple(_replica(row, releases[row.release.number]) for row in replicas),
        limits=_limit_uses(bodies, model),
        rate_limited=_total(models, "rate_limited"),
        cache_hits=_total_of(caches, ("hits", "shared_hits", "coalesced")),
        cache_misses=_total(caches, "misses"),
        requests_per_min=_sum(retries, "requests_per_min"),
        retries_per_min=_sum(retries, "retries_per_min"),
        retries_denied=_total(retries, "denied"),
        shadow_requests=_total(shadows, "requests"),
        shadow_tokens=_total(shadows, "tokens"),
        quarantined=_total([part(body, "quarantine") for body in bodies], "quarantined"),
    )


def _recent_ttft(model: str, *, now: datetime) -> dict[tuple[int, str], Histogram]:
    found: dict[tuple[int, str], Histogram] = {}
    series = find_series(CellFilter(model=model))
    rows = list_stage(series, "ttft", start=now - WINDOW, end=now + timedelta(seconds=1), resolution_s=10)
    for number, _, content in rows:
        key = (series[number].release, series[number].lane)
        found[key] = found.get(key, Histogram()).merge(Histogram.from_bytes(bytes(content)))
    return found


def _lane(
    lane: LaneRow, release: int, told: Sequence[Mapping[str, Any]], ttft: Histogram | None
) -> LaneControl:
    gates = [part(one, "gate", "lanes", lane.name) for one in told]
    in_flight, queued = _total(gates, "in_flight"), _total(gates, "queued")
    codes = {code for gate in gates for code in part(gate, "refused")}
    refused = {code: _total([part(gate, "refused") for gate in gates], code) or 0 for code in sorted(codes)}
    reasons = [
        word(part(replica, "lanes", lane.name), "reason")
        for one in told
        for replica in part(one, "gate", "replicas").values()
    ]
    return LaneControl(
        lane=lane.name,
        release=release,
        limit=_sum(gates, "limit"),
        limit_reason=next((reason for reason in LIMIT_REASONS if reason in reasons), ""),
        in_flight=in_flight,
        queued=queued,
        oldest_wait_s=max(_known(gates, "oldest_wait_s"), default=None),
        growth=_worst([part(gate, "growth") for gate in gates], "stage", STAGES),
        refused=refused,
        ttft_target_ms=lane.ttft_target_ms,
        ttft_p50_s=ttft.quantile(0.5) if ttft else None,
        samples=ttft.count if ttft else 0,
    )


def _release(
    number: int, told: Sequence[Mapping[str, Any]], tokenizers: Sequence[Mapping[str, Any]]
) -> ReleaseControl:
    affinity = [part(one, "affinity") for one in told]
    return ReleaseControl(
        release=number,
        tokenizer=_worst(tokenizers, "state", TOKENIZERS),
        expected_hit_ratio=_mean(affinity, "expected_hit_ratio"),
        engine_hit_ratio=_mean(affinity, "engine_hit_ratio"),
        affinity_alarm=any(one.get("alarm") is True for one in affinity),
    )


def _replica(row: Replica, told: Sequence[Mapping[str, Any]]) -> ReplicaControl:
    seen = [part(one, "replicas", row.pk) for one in told]
    gates = [part(one, "gate", "replicas", row.pk) for one in told]
    marks = [part(gate, "watermark") for gate in gates]
    used = (
        _known(seen, "kv_used_ratio") or _known(marks, "used_ratio") or _known([row.load], "kv_usage_ratio")
    )
    waiting = _known(seen, "waiting") or _known([row.load], "waiting")
    return ReplicaControl(
        id=row.pk,
        release=row.release.number,
        in_flight=_total(gates, "in_flight"),
        slots=_largest(gates, "slots"),
        kv_tokens=_largest(gates, "kv_tokens"),
        waiting=None if not waiting else int(max(waiting)),
        kv_used_ratio=max(used, default=None),
        error_score=max(_known([part(one, "breaker") for one in seen], "error_score"), default=None),
        breaker=_worst([part(one, "breaker") for one in seen], "phase", BREAKERS),
        watermark=_worst(marks, "level", LEVELS),
    )


def _limit_uses(bodies: Sequence[Mapping[str, Any]], model: str) -> tuple[LimitUse, ...]:
    """`used` counts the other gateways too where a gateway knows them; else what each counted itself is added."""
    told: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for body in bodies:
        listed = part(body, "limits").get("limits")
        for one in listed if isinstance(listed, list) else ():
            kind, _, rest = word(one, "id").partition(":")
            holder = rest.rpartition(":")[0]
            owner, _, lane = holder.partition(":")
            if kind in ("model", "lane") and owner == model and figure(one, "limit"):
                told.setdefault((lane, word(one, "unit")), []).append(one)
    return tuple(
        LimitUse(
            lane=lane or None,
            unit=unit,
            limit=int(max(_known(found, "limit"))),
            used=int(max(_known(found, "used"), default=_sum(found, "used_here") or 0)),
        )
        for (lane, unit), found in sorted(told.items())
    )


def _worst(told: Sequence[Mapping[str, Any]], name: str, order: Sequence[str]) -> Standing:
    known = [one for one in told if word(one, name) in order]
    if not known:
        return Standing("", "", None)
    worst = max(known, key=lambda one: order.index(word(one, name)))
    return Standing(
        word(worst, name), word(worst, "reason"), figure(worst, "since_s"), figure(worst, "left_s")
    )


def _known(told: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [value for one in told if (value := figure(one, name)) is not None]


def _largest(told: Iterable[Mapping[str, Any]], name: str) -> int | None:
    known = _known(told, name)
    return int(max(known)) if known else None


def _mean(told: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = _known(told, name)
    return sum(values) / len(values) if values else None


def _sum(told: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """None where nobody knows it."""
    values = _known(told, name)
    return sum(values) if values else None


def _total(told: Iterable[Mapping[str, Any]], name: str) -> int | None:
    value = _sum(told, name)
    return None if value is None else int(value)


def _total_of(told: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int | None:
    known = [total for name in names if (total := _total(told, name)) is not None]
    return sum(known) if known else None
