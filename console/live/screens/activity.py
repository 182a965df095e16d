"""The last minutes of the pool as the overview shows them: lines, counts and a matrix of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from django.urls import reverse
from django.utils.translation import gettext as _

from console.live.screens import tones
from console.live.screens.rows import Tree, hue_of
from console.templatetags.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_instant,
    format_share,
)
from pool.domain.quality import LEAST_ANSWERS, Quality
from pool.queries.activity import STEP, WINDOW, Activity, DeviceLoad, load_activity
from pool.queries.ages import age_of

WIDTH, HEIGHT = 600.0, 64.0
_SERVED = frozenset({"ok", "client_gone", "client_error"})


def build_activity(*, now: datetime) -> Tree:
    return activity_tree(load_activity(now=now))


def activity_tree(seen: Activity) -> Tree:
    total = sum(row.requests for row in seen.outcomes)
    return {
        "at": format_instant(seen.at),
        "newest": age_of(seen.newest_at, now=seen.at),
        "quiet": seen.newest_at is None,
        "charts": _charts(seen),
        "total": format_count(total),
        "errors": _errors(seen, total),
        "quality": [_quality(row) for row in seen.quality],
        "least": LEAST_ANSWERS,
        "devices": [_device(row) for row in seen.devices],
        "has_utilization": any(value is not None for row in seen.devices for value in row.utilization),
        "left_out": seen.devices_left_out,
        "has_pcie": bool(seen.pcie),
    }


def _charts(seen: Activity) -> list[Tree]:
    """Of each a line over the window. In a step without a cell nothing ended."""
    lines: list[tuple[str, str, Callable[[float], str], list[tuple[datetime, float]]]] = [
        ("requests", _("Requests"), _rate, [(row.at, row.requests_per_s) for row in seen.throughput]),
        ("failed", _("Errors"), _rate, [(row.at, row.errors_per_s) for row in seen.throughput]),
        ("output", _("Output tokens"), _rate, [(row.at, row.output_tokens_per_s) for row in seen.throughput]),
        ("prompt", _("Prompt tokens"), _rate, [(row.at, row.prompt_tokens_per_s) for row in seen.throughput]),
    ]
    if seen.pcie:
        lines += [
            ("pcie-tx", _("PCIe out"), _bytes, [(row.at, row.tx_bytes_per_s) for row in seen.pcie]),
            ("pcie-rx", _("PCIe in"), _bytes, [(row.at, row.rx_bytes_per_s) for row in seen.pcie]),
        ]
    return [_chart(key, label, _fill(values, seen.since), show) for key, label, show, values in lines]


def _fill(values: Sequence[tuple[datetime, float]], since: datetime) -> list[float]:
    line = [0.0] * (int(WINDOW / STEP) + 1)
    for at, value in values:
        place = int((at - since) / STEP)
        if 0 <= place < len(line):
            line[place] = value
    return line


def _chart(key: str, label: str, line: list[float], show: Callable[[float], str]) -> Tree:
    # The step that is still open holds less than it will.
    closed = line[:-1]
    top = max(closed, default=0.0)
    step = WIDTH / max(1, len(closed) - 1)
    points = [
        f"{number * step:.1f},{HEIGHT - 1 - (value / top * (HEIGHT - 6) if top else 0.0):.1f}"
        for number, value in enumerate(closed)
    ]
    return {
        "id": key,
        "label": label,
        "now": show(closed[-1] if closed else 0.0),
        "top": show(top),
        "points": " ".join(points),
        "area": f"0,{HEIGHT} {' '.join(points)} {WIDTH:.0f},{HEIGHT}",
        "flat": not top,
    }


def _rate(value: float) -> str:
    digits = 0 if value >= 100 or value == 0 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}/s"


def _bytes(value: float) -> str:
    return f"{format_bytes(value)}/s"


def _errors(seen: Activity, total: int) -> list[Tree]:
    failed = [row for row in seen.outcomes if row.outcome not in _SERVED]
    most = max((row.requests for row in failed), default=0)
    return [
        {
            "id": row.outcome,
            "words": row.outcome.replace("_", " "),
            "count": format_count(row.requests),
            "share": format_share(row.requests / total) if total else UNKNOWN,
            "width": f"{row.requests / most * 100:.1f}%",
        }
        for row in failed
    ]


def _quality(row: Quality) -> Tree:
    length = row.length_ratio
    return {
        "id": f"{row.model}-{row.release}",
        "model": row.model,
        "href": reverse("model", args=[row.model]),
        "release": _("release %(number)d") % {"number": row.release},
        "hue": hue_of(row.release),
        "answers": format_count(row.answers),
        "empty": format_share(row.ratio(row.empty)),
        "repeated": format_share(row.ratio(row.repeated)),
        "cut": format_share(row.ratio(row.cut_by_length)),
        "tokens": format_count(row.mean_tokens),
        "length": UNKNOWN if length is None else f"{length:.2f} ×",
        "tone": tones.WARN if row.signs else tones.OK if row.answers >= LEAST_ANSWERS else tones.IDLE,
        "state": _sign_words(row),
        "bad_empty": "empty" in row.signs,
        "bad_repeated": "repeated" in row.signs,
        "bad_length": "length_jump" in row.signs,
    }


def _sign_words(row: Quality) -> str:
    if row.answers < LEAST_ANSWERS:
        return _("too few answers")
    words = {"empty": _("empty answers"), "repeated": _("repeats itself"), "length_jump": _("other length")}
    return ", ".join(words[sign] for sign in row.signs) or _("as before")


def _device(row: DeviceLoad) -> Tree:
    cells = [
        {
            "id": str(place),
            "x": place * 10,
            "level": "none" if value is None else str(min(9, int(value * 10))),
            "words": _("not measured") if value is None else format_share(value),
        }
        for place, value in enumerate(row.utilization)
    ]
    known = [value for value in row.utilization if value is not None]
    return {
        "id": f"{row.node}/{row.device}",
        "node": row.node,
        "device": row.device if len(row.device) <= 16 else f"…{row.device[-12:]}",
        "full": row.device,
        "cells": cells,
        "columns": len(cells) * 10,
        "now": format_share(known[-1]) if known else UNKNOWN,
    }
