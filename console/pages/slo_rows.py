"""SLOs as the page shows them: what was measured against what is promised, the budget, and its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from console import alert_words as words
from console.live.screens import tones
from console.templatetags.units import UNKNOWN, format_ms, format_share, from_iso
from pool.queries.slos import SloRow, SpanPoint

LINE_SPAN: Final = timedelta(hours=24)
STEP: Final = timedelta(minutes=5)
STALE_AFTER: Final = timedelta(seconds=60)
_WIDTH, _HEIGHT = 288, 30
_NAMES: Final = {
    "ttft_p50": gettext_noop("P50"),
    "ttft_p95": gettext_noop("P95"),
    "ttft_p99": gettext_noop("P99"),
    "errors": gettext_noop("Errors"),
    "degraded": gettext_noop("Degraded"),
    "interrupted": gettext_noop("Interrupted"),
}


def slo_words(row: SloRow, points: Sequence[SpanPoint], now: datetime) -> dict[str, object]:
    at = from_iso(str(row.report["at"])) if row.report.get("at") else None
    is_stale = at is None or now - at > STALE_AFTER
    objectives = row.report.get("objectives")
    found: Mapping[str, Any] = objectives if isinstance(objectives, Mapping) else {}
    return {
        "row": row,
        "tone": words.LEVEL_TONES.get(row.level, ""),
        "level": _level_words(row, found, is_stale=is_stale),
        "measures": [
            _measure(name, found.get(name), row) for name in _NAMES if _promise(name, row) is not None
        ],
        "budget": _budget(found),
        "line": draw_line(points, now),
        "limit_y": f"{_HEIGHT * 0.5:g}",
        "window": row.report.get("window_s"),
        "at": at,
        "is_stale": is_stale,
        "held": row.held_until is not None and row.held_until > now,
    }


def proposal_words(row: SloRow) -> dict[str, object]:
    figures, settings = row.figures, row.settings
    return {
        "row": row,
        "streams": figures.get("streams"),
        "limits": [
            {
                "name": _(_NAMES[name]),
                "measured": format_ms(_number(figures.get(f"{name}_s"))),
                "promise": format_ms(_number(settings.get(f"{name}_s"))),
            }
            for name in ("ttft_p50", "ttft_p95", "ttft_p99")
        ],
    }


def draw_line(points: Sequence[SpanPoint], now: datetime) -> str:
    """An SVG path of the part of streams that broke the P99, five minutes a step; half the height = all that the
    promise allows (1 %). A gap is drawn where nobody asked: no data is no zero."""
    start, path, last = now - LINE_SPAN, [], None
    for point in points:
        if not point.streams or point.at < start:
            continue
        x = (point.at - start) / LINE_SPAN * _WIDTH
        y = _HEIGHT - min(1.0, point.slow / point.streams / 0.02) * (_HEIGHT - 2) - 1
        joins = last is not None and point.at - last <= STEP
        path.append(f"{'L' if joins else 'M'}{x:.1f} {y:.1f}" + ("" if joins else "h0.8"))
        last = point.at
    return "".join(path)


def _level_words(row: SloRow, found: Mapping[str, Any], *, is_stale: bool) -> str:
    """Normal is only said of what could be judged."""
    if row.level != "normal":
        return words.level_word(row.level)
    states = {one["state"] for one in found.values() if one}
    if is_stale or not states:
        return _("not judged")
    return _("kept") if "measured" in states else words.state_words("few" if "few" in states else "absent")


def _promise(name: str, row: SloRow) -> float | None:
    return _number(row.settings.get(f"{name}_s" if name.startswith("ttft") else f"{name}_ratio"))


def _measure(name: str, found: Mapping[str, Any] | None, row: SloRow) -> dict[str, object]:
    limit = _promise(name, row)
    show = format_ms if name.startswith("ttft") else format_share
    value = _number((found or {}).get("value"))
    is_judged = bool(found) and (found or {}).get("state") == "measured"
    is_over = is_judged and value is not None and limit is not None and value > limit
    return {
        "name": _(_NAMES[name]),
        "value": UNKNOWN if value is None else show(value),
        "tone": tones.BAD if is_over else "" if is_judged else tones.IDLE,
        "promise": show(limit),
        "samples": (found or {}).get("samples"),
        "state": "" if is_judged else words.state_words(str((found or {}).get("state", "absent"))),
    }


def _budget(found: Mapping[str, Any]) -> dict[str, object]:
    """Of the promise that has least left."""
    known = [(one["budget_left"], name, one) for name, one in found.items() if _has_budget(name, one)]
    if not known:
        return {"words": UNKNOWN, "width": "0", "tone": "", "of": "", "burn": "", "is_known": False}
    left, name, one = min(known, key=lambda item: item[0])
    burn = _number(one.get("burn_1h"))
    return {
        "words": format_share(max(0.0, left)) if left > 0 else _("used up"),
        "width": f"{max(0.0, min(1.0, left)) * 100:.1f}",
        "tone": tones.BAD if left <= 0.1 else tones.WARN if left <= 0.4 else tones.OK,
        "of": _(_NAMES[name]),
        "burn": UNKNOWN if burn is None else f"{burn:.1f} ×",
        "is_known": True,
    }


def _has_budget(name: str, one: Mapping[str, Any] | None) -> bool:
    """The budgets of P50 and P95 say the same more weakly."""
    return one is not None and name not in ("ttft_p50", "ttft_p95") and one.get("budget_left") is not None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
