"""The evidence of a rollout's gates over time: a small plot for each gate, from nothing shown (0) to the bar (1)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import plotly.graph_objects as go
from django.utils.translation import gettext as _

from console.figures.theme import Figure, build, plain
from console.rollout_words import gate_words
from pool.queries.rollout_evidence import Evidence, GateLine

MOST_COLUMNS: Final = 3
_TOP: Final = 1.15
_GAP_X: Final = 0.05
_TITLE_PART: Final = 0.24
"""Of a row's height: its title and the ticks of the one above."""


def draw_evidence(evidence: Evidence, *, columns: int = MOST_COLUMNS) -> Figure:
    """Traces of each gate: evidence of worse, evidence of not worse. The dashed line is the bar."""
    gates = evidence.gates
    rows = max(1, -(-len(gates) // columns))
    traces: list[Any] = []
    layout: dict[str, Any] = {"annotations": [], "shapes": []}
    for place, line in enumerate(gates):
        row, column = divmod(place, columns)
        suffix = "" if place == 0 else str(place + 1)
        box = _box(row, rows, column, columns)
        layout[f"xaxis{suffix}"] = _time(evidence, box, suffix, shown=place + columns >= len(gates))
        layout[f"yaxis{suffix}"] = _way(box, suffix, shown=column == 0)
        layout["annotations"].append(_title(line, box, is_short=columns == 2))
        layout["shapes"] += [_bar_line(suffix), *(_mark_line(mark.at, suffix) for mark in evidence.marks)]
        traces += _draw_line(line, suffix)
    margin = {"l": 34, "r": 10, "t": 4, "b": 24}
    return build(
        traces, **layout, margin=margin, plot_bgcolor="var(--surface-2)", dragmode=False, meta={"rows": rows}
    )


def _box(row: int, rows: int, column: int, columns: int) -> tuple[float, float, float, float]:
    """(left, right, bottom, top) as parts of the figure; row 0 is at the top."""
    width = (1 - _GAP_X * (columns - 1)) / columns
    left = column * (width + _GAP_X)
    height = 1 / rows
    top = 1 - row * height
    return left, left + width, top - height + 0.02, top - height * _TITLE_PART


def _time(
    evidence: Evidence, box: tuple[float, float, float, float], suffix: str, *, shown: bool
) -> dict[str, Any]:
    return {
        "type": "date",
        "domain": [box[0], box[1]],
        "anchor": f"y{suffix}",
        "range": [_ms(evidence.start), _ms(evidence.end)],
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
        "linecolor": "var(--line-strong)",
        "showticklabels": shown,
        "tickformat": "%H:%M",
        "nticks": 4,
        "tickfont": {"size": 10},
    }


def _way(box: tuple[float, float, float, float], suffix: str, *, shown: bool) -> dict[str, Any]:
    return {
        "domain": [box[2], box[3]],
        "anchor": f"x{suffix}",
        "range": [-0.04, _TOP],
        "tickmode": "array",
        "tickvals": [0, 1],
        "ticktext": ["0", _("bar")],
        "tickfont": {"size": 10},
        "showticklabels": shown,
        "gridcolor": "var(--line)",
        "zeroline": False,
        "fixedrange": True,
    }


def _title(line: GateLine, box: tuple[float, float, float, float], *, is_short: bool) -> dict[str, Any]:
    """`is_short`: two plots share a phone's width, where the words would run into each other."""
    words = plain(line.gate if is_short else gate_words(line.gate))
    return {
        "text": f"{words} · {_('reports only')}" if line.dry_run else words,
        "x": box[0],
        "y": box[3] + 0.005,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11.5, "color": "var(--text)"},
    }


def _bar_line(suffix: str) -> dict[str, Any]:
    line = {"color": "var(--text-3)", "width": 1, "dash": "dash"}
    return {
        "type": "line", "xref": f"x{suffix} domain", "yref": f"y{suffix}",
        "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": line,
    }  # fmt: skip


def _mark_line(at: datetime, suffix: str) -> dict[str, Any]:
    line = {"color": "var(--line-strong)", "width": 1, "dash": "dot"}
    return {
        "type": "line", "xref": f"x{suffix}", "yref": f"y{suffix} domain",
        "x0": _ms(at), "x1": _ms(at), "y0": 0, "y1": 1, "line": line,
    }  # fmt: skip


def _draw_line(line: GateLine, suffix: str) -> list[Any]:
    times = [_ms(at) for at in line.at]
    return [
        _trace(times, line.worse, suffix, _("worse"), "var(--bad)", "solid"),
        _trace(times, line.not_worse, suffix, _("not worse"), "var(--ok)", "dot"),
    ]


def _trace(
    times: list[int], values: tuple[float, ...], suffix: str, name: str, colour: str, dash: str
) -> Any:
    return go.Scatter(
        x=times,
        y=[min(_TOP, max(0.0, value)) for value in values],
        customdata=list(values),
        xaxis=f"x{suffix}",
        yaxis=f"y{suffix}",
        mode="lines" if len(times) > 1 else "markers",
        line={"color": colour, "width": 1.8, "dash": dash, "shape": "hv"},
        name=name,
        hovertemplate="%{x|%H:%M:%S}<br>"
        + name
        + ": %{customdata:.0%} "
        + _("of the bar")
        + "<extra></extra>",
    )


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
