"""Lanes with all their settings, and what each release makes of a lane: replicas, KV cache and precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pool.domain.gateway_settings import LaneSettings, read_lane_settings
from pool.domain.memory import DTYPE_BYTES, Unknown, engine_dtype, kv_bytes_per_token, kv_dtype
from pool.domain.profiles import EngineSettings
from pool.domain.version_facts import facts_from_json
from pool.models import Lane, Plan, Profile, Release, ReleaseProfile, Replica, Scale


@dataclass(frozen=True, kw_only=True)
class LaneRow(LaneSettings):
    name: str
    max_prompt_tokens: int | None
    """Prompts below this length belong to the lane; None: up to the context."""


@dataclass(frozen=True)
class LaneUse:
    """A lane as one release serves it. None: not known."""

    lane: str
    release: int
    weight_percent: int
    """Of the lane's traffic, by the plan in force."""
    own: bool
    """Its replicas serve this lane alone; otherwise all lanes share them by weight."""
    profile: str
    wanted: int
    ready: int
    slots: int | None
    """Sequences that one replica runs at once."""
    kv_tokens: int | None
    """Of one replica, as its engine printed: the smallest of those that are ready."""
    kv_bytes_per_token: int | None
    context_tokens: int | None
    block_tokens: int | None
    batched_tokens: int | None
    weights_as: str
    """Precision or quantization of the weights."""
    cache_as: str
    """Precision of the KV cache."""


def lane_settings(lane: Lane) -> LaneSettings:
    return read_lane_settings(
        {**lane.settings, "concurrency": lane.concurrency, "ttft_target_ms": lane.ttft_target_ms}
    )


def lane_row(lane: Lane) -> LaneRow:
    return LaneRow(name=lane.name, max_prompt_tokens=lane.max_prompt_tokens, **asdict(lane_settings(lane)))


def find_lane(model: str, name: str) -> LaneRow | None:
    lane = Lane.objects.filter(model__name=model, name=name).first()
    return None if lane is None else lane_row(lane)


def list_lane_uses(model: str) -> tuple[LaneUse, ...]:
    """Every lane × every release that the plan in force or a scale names, lanes from short to long. 6 queries.

    In a lane the release with the most traffic comes first.
    """
    lanes = list(Lane.objects.filter(model__name=model).order_by("position").values_list("name", flat=True))
    plan = Plan.objects.filter(in_force__model__name=model).first()
    scales = {
        (release_id, lane): replicas
        for release_id, lane, replicas in Scale.objects.filter(release__model__name=model).values_list(
            "release_id", "lane", "replicas"
        )
    }
    uses = {
        (use.release_id, use.lane): use
        for use in ReleaseProfile.objects.filter(release__model__name=model).select_related("profile")
    }
    replicas = list(Replica.objects.filter(release__model__name=model, phase="ready"))
    releases = Release.objects.filter(model__name=model).select_related("version").order_by("-number")
    found = []
    for lane in lanes:
        for release in releases:
            percent = _weight_of(plan, lane, release.number)
            key = (release.pk, lane) if (release.pk, lane) in uses else (release.pk, "")
            if key in uses and (percent or scales.get(key)):
                serving = [row for row in replicas if (row.release_id, row.lane) == key]
                found.append(
                    _lane_use(
                        lane,
                        release,
                        percent=percent,
                        use=uses[key],
                        wanted=scales.get(key, 0),
                        serving=serving,
                    )
                )
    return tuple(sorted(found, key=lambda use: (lanes.index(use.lane), -use.weight_percent)))


def _weight_of(plan: Plan | None, lane: str, number: int) -> int:
    if plan is None:
        return 0
    weights: Mapping[str, int] = plan.lanes.get(lane) or plan.weights
    return int(weights.get(str(number), 0))


def _lane_use(
    lane: str, release: Release, *, percent: int, use: ReleaseProfile, wanted: int, serving: list[Replica]
) -> LaneUse:
    settings = _settings_of(use.profile)
    printed = [row.figures.get("printed") for row in serving]
    tokens = [
        part["kv_cache_tokens"] for part in printed if isinstance(part, dict) and part.get("kv_cache_tokens")
    ]
    blocks = [
        part["block_size_tokens"]
        for part in printed
        if isinstance(part, dict) and part.get("block_size_tokens")
    ]
    per_token, weights_as, cache_as = _precision(release.version.facts, settings)
    context = settings.max_model_len or (release.version.facts or {}).get("context_tokens")
    return LaneUse(
        lane=lane,
        release=release.number,
        weight_percent=percent,
        own=use.lane != "",
        profile=use.profile.name,
        wanted=wanted,
        ready=len(serving),
        slots=settings.max_num_seqs,
        kv_tokens=min(tokens, default=None),
        kv_bytes_per_token=per_token,
        context_tokens=context if isinstance(context, int) else None,
        block_tokens=min(blocks, default=settings.block_size),
        batched_tokens=settings.max_num_batched_tokens,
        weights_as=weights_as,
        cache_as=cache_as,
    )


def _settings_of(profile: Profile) -> EngineSettings:
    known = {name: value for name, value in profile.settings.items() if name in EngineSettings.__slots__}
    return EngineSettings(**known)


def _precision(facts: Any, settings: EngineSettings) -> tuple[int | None, str, str]:
    """KV bytes per token (None: nobody can compute them), weights, KV cache."""
    if not isinstance(facts, dict):
        return None, settings.quantization or "", ""
    try:
        known = facts_from_json(facts)
    except (TypeError, ValueError, KeyError):
        return None, settings.quantization or str(facts.get("quantization") or facts.get("dtype") or ""), ""
    cache = kv_dtype(known, settings)
    if cache not in DTYPE_BYTES:
        return None, engine_dtype(known, settings), cache
    per_token = kv_bytes_per_token(known, settings)
    weights = settings.quantization or known.quantization or engine_dtype(known, settings)
    return (None if isinstance(per_token, Unknown) else per_token), weights, cache
