"""Latency as figures: heatmap with its quantiles and events, difference of two releases, regions over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
from django.utils.translation import gettext as _

from console.figures.theme import (
    GREYS,
    HEAT,
    LESS,
    MIDDLE,
    MORE,
    QUANTILE_LINES,
    Figure,
    build,
    name_axis,
    plain,
    root_scale,
    seconds_axis,
    time_axis,
)
from pool.queries.events import Event
from pool.queries.latency import DifferenceHeatmap, LatencyHeatmap, Line, RegionHeatmap

COLOURINGS: Final = ("count", "share")
_FEW_SAMPLES: Final = 20
_SECONDS = "%{y:.3~s}s"


def draw_heatmap(
    picture: LatencyHeatmap, events: Sequence[Event] = (), *, colouring: str = "count"
) -> Figure:
    """Traces: heatmap, then for each quantile what few samples give (faint) and what enough give, then the events."""
    times = _edges_ms(picture.start, picture.step_s, len(picture.samples))
    counts = np.array(picture.counts, dtype=np.float32).reshape(-1, len(picture.samples))
    samples = np.array(picture.samples, dtype=np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (counts / samples).astype(np.float32)
    counts[:, samples == 0] = np.nan
    shown, other = (counts, shares) if colouring == "count" else (shares, counts)
    most = float(np.nanmax(counts, initial=1.0)) if colouring == "count" else _largest_share(shares, samples)
    lines = [trace for line in picture.lines for trace in _draw_line(line, picture, times)]
    return build(
        [_heat((shown, other), times, picture.edges_s, colouring, most), *lines, *_draw_events(events)],
        xaxis=time_axis(times[0], times[-1]),
        yaxis=_latency_axis(picture.edges_s),
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        shapes=[_event_line(event) for event in events],
        meta={"stage": picture.stage, "colouring": colouring, "step_s": picture.step_s},
    )


def draw_difference(picture: DifferenceHeatmap) -> Figure:
    """Two heatmaps on each other: grey what may be chance, coloured what is more."""
    times = _edges_ms(picture.start, picture.step_s, len(picture.base_samples))
    shape = (-1, len(picture.base_samples))
    values = np.array(picture.differences, dtype=np.float32).reshape(shape)
    significant = np.array(picture.significant, dtype=bool).reshape(shape)
    found = np.abs(values[np.isfinite(values)])
    largest = float(found.max()) if found.size and found.max() else 1.0
    samples = np.broadcast_to(
        np.stack([picture.base_samples, picture.release_samples], axis=1), (*values.shape, 2)
    )
    named = {"base": picture.base, "release": picture.release}
    hover = (
        "%{x|%H:%M:%S}<br>"
        + _SECONDS
        + "<br>"
        + _("release %(release)s − release %(base)s") % named
        + ": %{z:+.2%}<br>"
        + _("samples: %(release)s: %%{customdata[1]:,}, %(base)s: %%{customdata[0]:,}") % named
    )
    common = {"x": times, "y": list(picture.edges_s), "customdata": samples.astype(np.int32)}
    grey = go.Heatmap(
        z=np.abs(np.where(significant, np.nan, values)),
        zmin=0,
        zmax=largest,
        colorscale=_grey_scale(),
        showscale=False,
        hovertemplate=hover.replace("%{z:+.2%}<br>", "") + f"<extra>{_('may be chance')}</extra>",
        **common,
    )
    coloured = go.Heatmap(
        z=np.where(significant, values, np.nan),
        zmin=-largest,
        zmax=largest,
        colorscale=[
            [0, LESS[0]],
            [0.25, LESS[1]],
            [0.5, MIDDLE],
            [0.75, MORE[0]],
            [1, MORE[1]],
        ],
        colorbar=_colorbar("+.1%"),
        hovertemplate=hover + "<extra></extra>",
        **common,
    )
    return build(
        [grey, coloured],
        xaxis=time_axis(times[0], times[-1]),
        yaxis=_latency_axis(picture.edges_s),
        meta={"stage": picture.stage, "step_s": picture.step_s, **named},
    )


def draw_regions(picture: RegionHeatmap) -> Figure:
    """Two heatmaps on each other: grey what few samples give, coloured what enough give."""
    times = _edges_ms(picture.start, picture.step_s, _columns_of(picture))
    names = [plain(region) for region in picture.regions]
    shape = (-1, len(times) - 1)
    seconds = np.array(picture.seconds, dtype=np.float32).reshape(shape)
    enough = np.array(picture.enough, dtype=bool).reshape(shape)
    known = seconds[np.isfinite(seconds)]
    hover = (
        "%{y}<br>%{x|%H:%M:%S}<br>"
        + f"p{100 * picture.quantile:g} "
        + "%{z:.3~s}s<br>"
        + _("%{customdata:,} samples")
    )
    common = {
        "x": times,
        "y": names,
        "customdata": np.array(picture.samples, dtype=np.int32).reshape(shape),
        "zmin": 0,
        "zmax": float(known.max()) if known.size else 1.0,
        "ygap": 2,
    }
    grey = go.Heatmap(
        z=np.where(enough, np.nan, seconds),
        colorscale=_grey_scale(),
        showscale=False,
        hovertemplate=hover + f"<extra>{_('few samples')}</extra>",
        **common,
    )
    coloured = go.Heatmap(
        z=np.where(enough, seconds, np.nan),
        colorscale=root_scale(HEAT),
        colorbar=_colorbar(".2~s", suffix="s"),
        hovertemplate=hover + "<extra></extra>",
        **common,
    )
    return build(
        [grey, coloured],
        xaxis=time_axis(times[0], times[-1]),
        yaxis=name_axis(names),
        meta={"stage": picture.stage, "quantile": picture.quantile, "step_s": picture.step_s},
    )


def _heat(
    values: tuple[Any, Any], times: list[float], edges_s: Iterable[float], colouring: str, most: float
) -> Any:
    shown, other = values
    count, share = ("z", "customdata") if colouring == "count" else ("customdata", "z")
    hover = "%{x|%H:%M:%S}<br>" + _SECONDS + f"<br>%{{{count}:,}} " + _("samples") + f" · %{{{share}:.1%}}"
    return go.Heatmap(
        x=times,
        y=list(edges_s),
        z=shown,
        customdata=other,
        zmin=0,
        zmax=most,
        colorscale=root_scale(HEAT),
        colorbar=_colorbar(",d" if colouring == "count" else ".0%"),
        hovertemplate=hover + "<extra></extra>",
        name=colouring,
    )


def _draw_line(line: Line, picture: LatencyHeatmap, times: list[float]) -> list[Any]:
    """Faint over all columns, strong where the samples suffice. A column without samples is a gap."""
    name, few = f"p{100 * line.quantile:g}", _("few samples")
    firm = [value if enough else None for value, enough in zip(line.seconds, line.enough, strict=True)]
    details = [
        [samples, "> " if is_beyond else "", "" if enough else f" ({few})"]
        for samples, is_beyond, enough in zip(picture.samples, line.beyond_top, line.enough, strict=True)
    ]
    hover = f"{name} %{{customdata[1]}}{_SECONDS} · " + _("%{customdata[0]:,} samples") + "%{customdata[2]}"
    common = {
        "x": [time + picture.step_s * 500 for time in times[:-1]],
        "line": QUANTILE_LINES[line.quantile],
        "connectgaps": False,
        "name": name,
    }
    marker = {"size": 3, "color": QUANTILE_LINES[line.quantile]["color"]}
    return [
        go.Scatter(
            y=line.seconds,
            mode="lines+markers",
            marker=marker,
            opacity=0.45,
            customdata=details,
            hovertemplate=hover + "<extra></extra>",
            **common,
        ),
        go.Scatter(y=firm, mode="lines", hoverinfo="skip", **common),
    ]


def _draw_events(events: Sequence[Event]) -> list[Any]:
    if not events:
        return []
    trace = go.Scatter(
        x=[_ms(event.at) for event in events],
        y=[1] * len(events),
        yaxis="y2",
        mode="markers",
        marker={"symbol": "triangle-down", "size": 9, "color": "var(--text-2)"},
        hovertext=[_event_text(event) for event in events],
        hovertemplate="%{x|%H:%M:%S}<br>%{hovertext}<extra></extra>",
        name="events",
        cliponaxis=False,
    )
    return [trace]


def _event_text(event: Event) -> str:
    what = {
        "plan": _("plan %(subject)s"),
        "rollback": _("rollback, plan %(subject)s"),
        "ready": _("replica %(subject)s ready"),
        "restart": _("replica %(subject)s restarted"),
        "draining": _("replica %(subject)s draining"),
        "stopped": _("replica %(subject)s stopped"),
        "failed": _("replica %(subject)s failed"),
        "alert": _("alert %(subject)s"),
        "alert_closed": _("alert %(subject)s closed"),
        "rollout": _("rollout %(subject)s"),
    }[event.kind] % {"subject": plain(event.subject)}
    return f"{what}<br>{plain(event.detail[:200])}" if event.detail else what


def _event_line(event: Event) -> dict[str, Any]:
    at = _ms(event.at)
    line = {"color": "var(--text-3)", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _latency_axis(edges_s: Sequence[float]) -> dict[str, Any]:
    limits = [math.log10(edges_s[0]), math.log10(edges_s[-1])]
    return seconds_axis(edges_s[0], edges_s[-1]) | {"range": limits}


def _grey_scale() -> list[list[Any]]:
    return [[step / (len(GREYS) - 1), colour] for step, colour in enumerate(GREYS)]


def _largest_share(shares: Any, samples: Any) -> float:
    """Where the colours end. One of few samples is a large share: such columns would make all else pale."""
    found = shares[:, samples >= _FEW_SAMPLES]
    found = found if found.size else shares[np.isfinite(shares)]
    return float(found.max()) if found.size else 1.0


def _colorbar(tickformat: str, *, suffix: str = "") -> dict[str, Any]:
    return {
        "thickness": 8,
        "outlinewidth": 0,
        "tickformat": tickformat,
        "ticksuffix": suffix,
        "tickfont": {"size": 11},
        "len": 1,
        "xpad": 4,
        "ypad": 0,
        "nticks": 5,
    }


def _edges_ms(start: datetime, step_s: int, columns: int) -> list[float]:
    """`columns` + 1 of them, in milliseconds since the epoch."""
    return [_ms(start) + column * step_s * 1000 for column in range(columns + 1)]


def _ms(at: datetime) -> float:
    return round(at.timestamp() * 1000)


def _columns_of(picture: RegionHeatmap) -> int:
    return round((picture.end - picture.start).total_seconds() / picture.step_s)
