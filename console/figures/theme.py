"""What all figures share. Colours are the names of `static/css/tokens.css`: who draws replaces `var(--name)` by its
value, anew when the theme changes."""

from __future__ import annotations

from html import escape
from typing import Any, Final

import plotly.graph_objects as go

Figure = dict[str, Any]

HEAT: Final = tuple(f"var(--heat-{step})" for step in range(6))
"""From nothing to most. What is missing has no colour: the ground shows."""
GREYS: Final = tuple(f"var(--grey-{step})" for step in range(3))
LESS: Final = ("var(--less-2)", "var(--less-1)")
MORE: Final = ("var(--more-1)", "var(--more-2)")
MIDDLE: Final = "var(--surface)"
QUANTILE_LINES: Final = {
    0.5: {"color": "var(--quantile-50)", "dash": "dot", "width": 1.5},
    0.95: {"color": "var(--quantile-95)", "dash": "dash", "width": 1.5},
    0.99: {"color": "var(--quantile-99)", "dash": "solid", "width": 2},
}
_AXIS: Final = {
    "gridcolor": "var(--line)",
    "linecolor": "var(--line-strong)",
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": "var(--line-strong)",
    "ticklen": 4,
}
_TICKS_S: Final = (
    *(factor * 10.0**power for power in range(-4, 1) for factor in (1, 2, 5)),
    10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0,
)  # fmt: skip


def plain(text: str) -> str:
    """Text as it is: plotly reads tags in names and hover texts (FC-55)."""
    return escape(text, quote=False)


def build(traces: list[Any], **layout: Any) -> Figure:
    """As JSON values, without title and without plotly's own template."""
    figure = go.Figure(data=traces, layout=go.Layout(_layout() | layout))
    built: Figure = figure.to_plotly_json()
    built["layout"].pop("template", None)
    return built


def time_axis(start_ms: float, end_ms: float) -> dict[str, Any]:
    return _AXIS | {"type": "date", "range": [start_ms, end_ms], "showgrid": False}


def seconds_axis(low_s: float, high_s: float) -> dict[str, Any]:
    """Logarithmic, with ticks at 1, 2 and 5."""
    ticks = [value for value in _TICKS_S if low_s <= value <= high_s]
    return _AXIS | {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [format_seconds(value) for value in ticks],
        "showgrid": False,
    }


def name_axis(names: list[str]) -> dict[str, Any]:
    return _AXIS | {"type": "category", "categoryarray": names, "autorange": "reversed", "showgrid": False}


def root_scale(colours: tuple[str, ...]) -> list[list[Any]]:
    """Colours by the square root of the value: a cell with a tenth of the most is still seen."""
    last = len(colours) - 1
    return [[(step / last) ** 2, colour] for step, colour in enumerate(colours)]


def format_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    if seconds < 60:
        return f"{seconds:g} s"
    return f"{seconds / 60:g} min" if seconds < 3600 else f"{seconds / 3600:g} h"


def _layout() -> dict[str, Any]:
    return {
        # Room for the colour bar's labels and for the date, so that another range or colouring moves nothing.
        "margin": {"l": 60, "r": 72, "t": 10, "b": 40},
        "font": {"family": "var(--font)", "size": 12, "color": "var(--text-2)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "var(--heat-missing)",
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": "var(--surface-3)",
            "bordercolor": "var(--line-strong)",
            "font": {"family": "var(--font)", "color": "var(--text)"},
            "align": "left",
        },
        "showlegend": False,
        "dragmode": "select",
        "uirevision": "kept",
    }
