"""Traffic control of a model: what each lane, release and replica lets in now, and why."""

from __future__ import annotations

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from console.live.screens import tones
from console.live.screens.rows import Tree, hue_of
from console.templatetags.units import UNKNOWN, format_count, format_duration, format_ms, format_share
from pool.domain.gateway_settings import ModelSettings
from pool.queries.models import ModelRow, find_model
from pool.queries.plans import PlanRow
from pool.queries.traffic_control import (
    LaneControl,
    LimitUse,
    ReleaseControl,
    ReplicaControl,
    Standing,
    TrafficControl,
    load_traffic_control,
)
from pool.services.errors import not_found

_STATES = {
    "normal": (tones.OK, gettext_noop("all let in")),
    "warn": (tones.WARN, gettext_noop("filling")),
    "no_long": (tones.WARN, gettext_noop("no new long")),
    "short_only": (tones.BAD, gettext_noop("short and vip only")),
    "no_batch": (tones.WARN, gettext_noop("no new batch")),
    "no_standard": (tones.BAD, gettext_noop("only vip")),
    "open": (tones.BAD, gettext_noop("held off")),
    "half_open": (tones.WARN, gettext_noop("on trial")),
    "ready": (tones.OK, gettext_noop("exact")),
    "estimated": (tones.IDLE, gettext_noop("estimated")),
    "loading": (tones.BUSY, gettext_noop("loading")),
    "degraded": (tones.WARN, gettext_noop("degraded")),
}
_REASONS = {
    "use_reached_warn": gettext_noop("KV cache in use reached the mark"),
    "use_reached_no_long": gettext_noop("KV cache in use reached the mark"),
    "use_reached_short_only": gettext_noop("KV cache in use reached the mark"),
    "use_fell": gettext_noop("KV cache in use fell"),
    "use_unknown": gettext_noop("KV cache in use is unknown"),
    "pending_grows": gettext_noop("more wait than ten minutes ago"),
    "pending_fell": gettext_noop("fewer wait than before"),
    "connect": gettext_noop("nobody listens"),
    "connect_timeout": gettext_noop("does not take connections"),
    "lost": gettext_noop("connection lost before the answer"),
    "broken": gettext_noop("answers break off"),
    "dead_core": gettext_noop("its core is dead"),
    "misdirected": gettext_noop("another process listens there"),
    "hung": gettext_noop("no progress while work waits"),
    "server_error": gettext_noop("answers with server errors"),
    "unavailable": gettext_noop("takes nothing on"),
    "protocol": gettext_noop("answers are no valid HTTP"),
    "first_byte_timeout": gettext_noop("first byte too late"),
    "idle_timeout": gettext_noop("streams stand still"),
    "tokenizer_broken": gettext_noop("its tokenizer cannot be read"),
    "simulated": gettext_noop("simulated: words are no tokens"),
}
_LIMIT_REASONS = {
    "over_target": gettext_noop("lowered: over the target"),
    "within_target": gettext_noop("raised: within the target"),
    "all_slots": gettext_noop("all slots"),
    "start": gettext_noop("as set"),
}
_ENOUGH_SAMPLES = 20
NO_BREAK = "\u00a0"


def build_traffic_control(name: str) -> Tree:
    model = find_model(name)
    if model is None:
        raise not_found("model", name)
    return control_tree(model, load_traffic_control(name, lanes=model.lanes, now=timezone.now()))


def control_tree(model: ModelRow, seen: TrafficControl) -> Tree:
    return {
        "redis_silent": seen.gateways is None,
        "nobody": seen.gateways == 0,
        "tiles": _tiles(seen, model),
        "lanes": [_lane_row(row, model.plan) for row in seen.lanes],
        "no_lanes": not seen.lanes,
        "limits": [_limit_row(row) for row in seen.limits],
        "has_limits": bool(seen.limits),
        "replicas": [_replica_row(row, model.gateway) for row in seen.replicas],
        "no_replicas": not seen.replicas,
        "releases": [_release_row(row) for row in seen.releases],
    }


def _tiles(seen: TrafficControl, model: ModelRow) -> Tree:
    in_flight, queued = _sum(row.in_flight for row in seen.lanes), _sum(row.queued for row in seen.lanes)
    waits = [row.oldest_wait_s for row in seen.lanes if row.oldest_wait_s is not None]
    refused = _count_refused(seen)
    return {
        "in_flight": format_count(in_flight),
        "queued": format_count(queued),
        "queued_tone": tones.WARN if queued else "",
        "oldest": _("oldest %(wait)s") % {"wait": format_duration(max(waits))} if waits and queued else "",
        "refused": format_count(sum(refused.values()) if seen.gateways else None),
        "refused_words": _refused_words(refused),
        "retries": format_count(seen.retries_per_min),
        "retries_words": _("in the last minute, of %(all)s requests")
        % {"all": format_count(seen.requests_per_min)},
        **_cache_tile(seen, model.gateway),
        **_shadow_tile(seen, model.plan),
    }


def _cache_tile(seen: TrafficControl, settings: ModelSettings) -> Tree:
    hits = seen.cache_hits
    asked = None if hits is None else hits + (seen.cache_misses or 0)
    if asked and hits is not None:
        words = _("%(hits)s of %(all)s asked") % {"hits": format_count(hits), "all": format_count(asked)}
        return {"cache": format_share(hits / asked), "cache_words": words}
    if not settings.cache_s and not settings.coalesce:
        return {"cache": _("off"), "cache_words": ""}
    return {"cache": UNKNOWN, "cache_words": _("nothing deterministic was asked")}


def _shadow_tile(seen: TrafficControl, plan: PlanRow | None) -> Tree:
    """What a shadow of the past has cost stays shown."""
    if not seen.shadow_tokens and (plan is None or not plan.shadow):
        return {"shadow": _("off"), "shadow_words": ""}
    words = _("tokens, %(count)s requests") % {"count": format_count(seen.shadow_requests)}
    return {"shadow": format_count(seen.shadow_tokens), "shadow_words": words}


def _count_refused(seen: TrafficControl) -> dict[str, int]:
    """By code, over all lanes."""
    totals = {"rate_limited": seen.rate_limited or 0}
    for row in seen.lanes:
        for code, count in row.refused.items():
            totals[code] = totals.get(code, 0) + count
    return totals


def _refused_words(totals: dict[str, int]) -> str:
    shown = sorted(totals.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{code} {format_count(count)}" for code, count in shown if count)


def _lane_row(row: LaneControl, plan: PlanRow | None) -> Tree:
    share = None if row.limit in (None, 0) or row.in_flight is None else row.in_flight / (row.limit or 1)
    tone, state = _standing(row.growth, calm=_("steady"))
    return {
        "id": f"{row.release}-{row.lane}",
        "lane": row.lane,
        "release": _part_words(row, plan),
        "hue": hue_of(row.release),
        "in_flight": format_count(row.in_flight),
        "limit": format_count(row.limit),
        "limit_reason": _(_LIMIT_REASONS.get(row.limit_reason, "")) if row.limit_reason else "",
        "fill": _width(share),
        "fill_tone": "" if share is None else tones.WARN if share >= 1 else tones.OK,
        "queued": format_count(row.queued),
        "queued_tone": tones.WARN if row.queued else "",
        "oldest": _("oldest %(wait)s") % {"wait": format_duration(row.oldest_wait_s)}
        if row.queued and row.oldest_wait_s is not None
        else "",
        "ttft": format_ms(row.ttft_p50_s),
        "ttft_tone": _ttft_tone(row),
        "target": _("target %(target)s") % {"target": format_ms(row.ttft_target_ms / 1000)},
        "growth": state,
        "growth_tone": tone,
        "growth_reason": _reason(row.growth),
        "refused": format_count(None if row.in_flight is None else sum(row.refused.values())),
        "refused_words": ", ".join(f"{code} {format_count(n)}" for code, n in row.refused.items() if n),
    }


def _part_words(row: LaneControl, plan: PlanRow | None) -> str:
    """“release 2, 5 %”: the part of the lane's traffic that the plan gives the release."""
    name = _("release %(number)d") % {"number": row.release}
    if plan is None:
        return name
    weights, shadow = plan.lanes.get(row.lane) or plan.weights, plan.shadow or {}
    words = f"{name}, {weights.get(str(row.release), 0)} %"
    return f"{words}, {_('shadow')}" if shadow.get("release") == row.release else words


def _limit_row(row: LimitUse) -> Tree:
    share = row.used / row.limit
    return {
        "id": f"{row.lane or ''}-{row.unit}",
        "of": row.lane or _("the model"),
        "unit": _("tokens/min") if row.unit == "tokens" else _("requests/min"),
        "used": format_count(row.used),
        "limit": format_count(row.limit),
        "fill": _width(share),
        "tone": tones.WARN if share >= 1 else tones.OK,
    }


def _ttft_tone(row: LaneControl) -> str:
    """A median of a handful of requests is no reason for a colour."""
    if row.ttft_p50_s is None or row.samples < _ENOUGH_SAMPLES:
        return tones.IDLE
    return tones.OK if row.ttft_p50_s * 1000 <= row.ttft_target_ms else tones.WARN


def _replica_row(row: ReplicaControl, settings: ModelSettings) -> Tree:
    mark_tone, mark = _standing(row.watermark, calm=_("all let in"))
    breaker_tone, breaker = _standing(row.breaker, calm=_("in use"))
    if row.breaker.state == "closed":
        breaker_tone = tones.OK
    return {
        "id": row.id,
        "href": reverse("replica", args=[row.id]),
        "release": _("release %(number)d") % {"number": row.release},
        "kv": format_share(row.kv_used_ratio),
        "kv_width": _width(row.kv_used_ratio),
        "kv_tone": _kv_tone(row.kv_used_ratio, settings),
        "kv_tokens": _("of %(count)s tokens") % {"count": format_count(row.kv_tokens)}
        if row.kv_tokens
        else "",
        "in_flight": format_count(row.in_flight),
        "slots": _("of %(count)s slots") % {"count": format_count(row.slots)} if row.slots else "",
        "waiting": _("%(count)s wait in the engine") % {"count": format_count(row.waiting)}
        if row.waiting
        else "",
        "mark": mark,
        "mark_tone": mark_tone,
        "mark_reason": _reason(row.watermark),
        "breaker": breaker,
        "breaker_tone": breaker_tone,
        "breaker_reason": _reason(row.breaker),
        "errors": format_share(row.error_score),
    }


def _kv_tone(ratio: float | None, settings: ModelSettings) -> str:
    if ratio is None:
        return ""
    if ratio >= settings.watermark_short_ratio:
        return tones.BAD
    return tones.WARN if ratio >= settings.watermark_warn_ratio else tones.OK


def _release_row(row: ReleaseControl) -> Tree:
    tokenizer_tone, tokenizer = _standing(row.tokenizer, calm=_("exact"))
    return {
        "id": str(row.release),
        "name": _("release %(number)d") % {"number": row.release},
        "hue": hue_of(row.release),
        "expected": format_share(row.expected_hit_ratio),
        "expected_width": _width(row.expected_hit_ratio),
        "engine": format_share(row.engine_hit_ratio),
        "engine_width": _width(row.engine_hit_ratio),
        "alarm": row.affinity_alarm,
        "tokenizer": tokenizer,
        "tokenizer_tone": tokenizer_tone,
        "tokenizer_reason": _reason(row.tokenizer),
    }


def _standing(standing: Standing, *, calm: str) -> tuple[str, str]:
    """Tone and word; what nobody told is unknown, not calm."""
    if not standing.state:
        return tones.IDLE, _("unknown")
    if standing.state in ("closed", "normal"):
        return tones.OK, calm
    tone, words = _STATES.get(standing.state, (tones.IDLE, standing.state))
    return tone, _(words)


def _reason(standing: Standing) -> str:
    """“no progress while work waits, for 12 s, next trial in 3.0 s”; empty while all is calm."""
    if standing.state in ("", "closed", "normal", "ready"):
        return ""
    known = _REASONS.get(standing.reason)
    parts = [_(known) if known else standing.reason.replace("_", " ")]
    if standing.since_s is not None:
        parts.append(_("for %(time)s") % {"time": _unbroken(standing.since_s)})
    if standing.left_s is not None:
        parts.append(_("next trial in %(time)s") % {"time": _unbroken(standing.left_s)})
    return ", ".join(words for words in parts if words)


def _unbroken(seconds: float) -> str:
    return format_duration(seconds).replace(" ", NO_BREAK)


def _width(ratio: float | None) -> str:
    return "0%" if ratio is None else f"{round(min(1.0, max(0.0, ratio)) * 100, 1):g}%"


def _sum(values: object) -> int | None:
    known = [value for value in values if isinstance(value, int)]  # type: ignore[attr-defined]
    return sum(known) if known else None
