"""Figures of a replica as rows: what was predicted against what the engine printed, and its warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext as _

from console.live.screens.rows import Tree
from console.templatetags.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_ms,
)
from pool.queries.replicas import ReplicaRow

Format = Callable[[float | None], str]
WORTH_A_MARK_RATIO = 0.01


def figure_rows(row: ReplicaRow) -> list[Tree]:
    """A figure that nobody knows has no row: a page of dashes says nothing."""
    printed, predicted = _part(row.figures, "printed"), _part(row.figures, "predicted")
    warm = _part(row.figures, "warm_up")
    rows = [
        _row("kv_tokens", _("KV cache"), predicted.get("kv_tokens"), printed.get("kv_cache_tokens"), _tokens),
        _row(
            "kv_bytes",
            _("KV cache memory"),
            predicted.get("kv_bytes"),
            printed.get("kv_cache_bytes"),
            format_bytes,
        ),
        _row(
            "weights",
            _("Weights"),
            predicted.get("weight_bytes"),
            printed.get("model_memory_bytes"),
            format_bytes,
        ),
        _row("blocks", _("KV blocks"), predicted.get("kv_blocks"), printed.get("kv_blocks"), format_count),
        _row("block_size", _("Block size"), None, printed.get("block_size_tokens"), _tokens),
        _row("context", _("Context"), None, row.max_model_len or printed.get("max_model_len"), _tokens),
        _row("concurrency", _("Full contexts at once"), None, printed.get("max_concurrency"), _times),
        _row("load", _("Weights loaded in"), None, printed.get("load_s"), format_duration),
        _row("init", _("Engine set up in"), None, printed.get("init_s"), format_duration),
        _row("compile", _("of it compiling"), None, printed.get("compile_s"), format_duration),
        _word_row("dtype", _("Arithmetic"), printed.get("dtype")),
        _word_row("backend", _("Attention"), printed.get("attention_backend")),
        _word_row("caches", _("Compile caches"), _cache_words(row.figures.get("caches_warm"))),
        _row("prefill", _("Prefill, one prompt"), None, warm.get("prefill_tokens_per_s"), _rate),
        _row("decode", _("Decode, one stream"), None, warm.get("decode_tokens_per_s"), _rate),
        _row("warm_up", _("Warm-up took"), None, warm.get("took_s"), format_duration),
        _word_row("hot", _("Prefixes cached"), _hot_words(warm)),
        _word_row("start", _("Start to ready"), _start_words(row)),
    ]
    return [found for found in rows if found is not None]


def _hot_words(warm: Mapping[str, Any]) -> str | None:
    """None where nothing was to be replayed."""
    replayed, refused = (_number(warm.get(name)) or 0 for name in ("hot_prefixes", "hot_refused"))
    if not replayed and not refused:
        return None
    words = _("%(count)d golden or hot") % {"count": replayed}
    return words + (_(", %(count)d refused") % {"count": refused} if refused else "")


def warm_up_rows(figures: Mapping[str, Any]) -> list[Tree]:
    """Per lane of the recipe, from short to long prompts: the first time to first token, and where it levelled off."""
    lanes = _part(figures, "warm_up").get("lanes")
    known = [lane for lane in lanes if isinstance(lane, Mapping)] if isinstance(lanes, list) else []
    return [
        _warm_up_row(lane) for lane in sorted(known, key=lambda lane: _number(lane.get("prompt_tokens")) or 0)
    ]


def _warm_up_row(lane: Mapping[str, Any]) -> Tree:
    given = lane.get("ttfts_s")
    times = [value for value in given if _number(value) is not None] if isinstance(given, list) else []
    name = str(lane.get("lane") or _("all"))
    return {
        "id": name,
        "lane": name,
        "requests": format_count(_number(lane.get("requests"))),
        "prompt": format_count(_number(lane.get("prompt_tokens"))),
        "first": format_ms(_number(lane.get("first_ttft_s"))),
        "last": format_ms(_number(lane.get("ttft_s"))),
        "uneven": lane.get("plateau") is False,
        "points": spark_points(times),
        "has_points": len(times) > 1,
    }


def spark_points(values: list[float]) -> str:
    """Points of an SVG polyline in a box of 100 × 20, newest at the right."""
    if len(values) < 2:
        return ""
    top, step = max(values) or 1.0, 100 / (len(values) - 1)
    return " ".join(f"{index * step:.1f},{19 - value / top * 18:.1f}" for index, value in enumerate(values))


def _part(figures: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = figures.get(name)
    return part if isinstance(part, Mapping) else {}


def _row(key: str, label: str, predicted: object, printed: object, show: Format) -> Tree | None:
    wished, measured = _number(predicted), _number(printed)
    if wished is None and measured is None:
        return None
    return {
        "id": key,
        "label": label,
        "value": show(measured) if measured is not None else UNKNOWN,
        "predicted": "" if wished is None else _("predicted %(value)s") % {"value": show(wished)},
        "off": _deviation(wished, measured),
    }


def _word_row(key: str, label: str, value: object) -> Tree | None:
    if not isinstance(value, str) or not value:
        return None
    return {"id": key, "label": label, "value": value, "predicted": "", "off": ""}


def _deviation(predicted: float | None, printed: float | None) -> str:
    """Only a difference beyond the promise of 1 % is worth a word."""
    if not predicted or printed is None:
        return ""
    ratio = printed / predicted - 1
    return f"{ratio:+.1%}".replace("%", " %") if abs(ratio) > WORTH_A_MARK_RATIO else ""


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _tokens(value: float | None) -> str:
    return _("%(count)s tokens") % {"count": format_count(value)}


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else _("%(count)s tokens/s") % {"count": format_count(value)}


def _times(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f} ×"


def _cache_words(warm: object) -> str:
    if not isinstance(warm, bool):
        return ""
    return _("reused") if warm else _("built at this start")


def _start_words(row: ReplicaRow) -> str:
    if row.ready_at is None or row.started_at is None or row.ready_at < row.started_at:
        return ""
    return format_duration(row.ready_at - row.started_at)
