"""Figures as plotly.js gets them; that plotly accepts them is what building them checks."""

from __future__ import annotations

import base64
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from console.figures.latency import draw_difference, draw_heatmap, draw_regions
from console.figures.theme import format_seconds
from pool.queries.ages import FigureState
from pool.queries.data_states import DataState
from pool.queries.events import Event
from pool.queries.latency import DifferenceHeatmap, LatencyHeatmap, Line, RegionHeatmap, Summary
from tests.factories import T0

DATA = DataState(FigureState.MEASURED, T0, 1.0, T0, 0, 1)
SUMMARY = Summary(2, 0.2, 0.2, 0.2, 0.2, beyond_top=False)
HOSTILE = "<img src=x onerror=alert(1)>"
TOKENS = Path("static/css/tokens.css").read_text()


def make_line(quantile: float) -> Line:
    return Line(quantile, (0.2, None, 3600.0), (True, False, False), (False, False, True))


def make_heatmap(**values: Any) -> LatencyHeatmap:
    fields: dict[str, Any] = {
        "model": "m",
        "stage": "ttft",
        "start": T0,
        "end": T0 + timedelta(seconds=3),
        "step_s": 1,
        "resolution_s": 1,
        "edges_s": (0.1, 0.3, 1.0),
        "has_top": False,
        "counts": ((30, 0, 1), (10, 0, 0)),
        "samples": (40, 0, 1),
        "lines": tuple(make_line(quantile) for quantile in (0.5, 0.95, 0.99)),
        "total": SUMMARY,
        "data": DATA,
    }
    return LatencyHeatmap(**(fields | values))


def make_difference() -> DifferenceHeatmap:
    return DifferenceHeatmap(
        model="m",
        stage="ttft",
        base=1,
        release=2,
        start=T0,
        end=T0 + timedelta(seconds=2),
        step_s=1,
        edges_s=(0.1, 0.3, 1.0),
        has_top=False,
        differences=((-0.5, None), (0.5, None)),
        significant=((True, False), (False, False)),
        range_differences=(-0.5, 0.5),
        range_significant=(True, False),
        base_samples=(10, 0),
        release_samples=(10, 5),
        summaries=(SUMMARY, SUMMARY),
        base_data=DATA,
        release_data=DATA,
    )


def make_regions(regions: tuple[str, ...] = ("eu", "us")) -> RegionHeatmap:
    return RegionHeatmap(
        model="m",
        stage="ttft",
        quantile=0.95,
        start=T0,
        end=T0 + timedelta(seconds=2),
        step_s=1,
        regions=regions,
        requests=(9, 1),
        seconds=((0.2, None), (0.5, 0.5)),
        samples=((30, 0), (3, 3)),
        enough=((True, False), (False, False)),
        unknown_requests=0,
        data=DATA,
    )


def read(packed: dict[str, Any]) -> np.ndarray[Any, Any]:
    """A typed array as plotly.js reads it."""
    shape = [int(size) for size in packed["shape"].split(",")]
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).reshape(shape)


@pytest.mark.parametrize(
    "figure",
    [
        draw_heatmap(make_heatmap()),
        draw_heatmap(make_heatmap(), [Event(T0, "failed", "r1", 1, "", "")], colouring="share"),
        draw_heatmap(make_heatmap(counts=((0, 0, 0),), edges_s=(0.1, 0.2), samples=(0, 0, 0))),
        draw_difference(make_difference()),
        draw_regions(make_regions()),
    ],
    ids=["heatmap", "share", "empty", "difference", "regions"],
)
def test_a_figure_is_json_and_its_colours_are_names_of_the_style_sheet(figure: dict[str, Any]) -> None:
    text = json.dumps(figure, allow_nan=False)

    names = set(re.findall(r"var\((--[a-z0-9-]+)\)", text))
    assert names
    assert {name for name in names if f"{name}:" not in TOKENS} == set()
    assert re.findall(r'"#[0-9a-f]{6}"', text) == []
    assert "title" not in figure["layout"]
    assert "template" not in figure["layout"]


def test_a_column_without_samples_is_a_gap_and_an_empty_cell_is_zero() -> None:
    counts = read(draw_heatmap(make_heatmap())["data"][0]["z"])
    shares = read(draw_heatmap(make_heatmap(), colouring="share")["data"][0]["z"])

    np.testing.assert_array_equal(counts, [[30, np.nan, 1], [10, np.nan, 0]])
    np.testing.assert_array_equal(shares, [[0.75, np.nan, 1], [0.25, np.nan, 0]])


def test_few_samples_do_not_set_the_colours_of_shares() -> None:
    assert draw_heatmap(make_heatmap(), colouring="share")["data"][0]["zmax"] == 0.75


def test_a_quantile_of_few_samples_is_faint_and_says_so() -> None:
    faint, firm = draw_heatmap(make_heatmap())["data"][-2:]

    assert (list(faint["y"]), list(firm["y"])) == ([0.2, None, 3600.0], [0.2, None, None])
    assert [row[2] for row in faint["customdata"]] == ["", " (few samples)", " (few samples)"]
    assert [row[1] for row in faint["customdata"]] == ["", "", "> "]
    assert (faint["connectgaps"], firm["hoverinfo"]) == (False, "skip")


def test_what_may_be_chance_is_grey() -> None:
    grey, coloured = draw_difference(make_difference())["data"]

    np.testing.assert_array_equal(
        read(coloured["z"]), np.array([[-0.5, np.nan], [np.nan, np.nan]], np.float32)
    )
    np.testing.assert_array_equal(read(grey["z"]), np.array([[np.nan, np.nan], [0.5, np.nan]], np.float32))
    assert (coloured["zmin"], coloured["zmax"]) == (-0.5, 0.5)


def test_regions_with_few_samples_are_grey() -> None:
    grey, coloured = draw_regions(make_regions())["data"]

    np.testing.assert_array_equal(
        read(coloured["z"]), np.array([[0.2, np.nan], [np.nan, np.nan]], np.float32)
    )
    np.testing.assert_array_equal(read(grey["z"]), np.array([[np.nan, np.nan], [0.5, 0.5]], np.float32))


def test_hostile_names_are_text_fc55() -> None:
    events = [Event(T0, "plan", HOSTILE, None, "", HOSTILE)]
    texts = json.dumps([draw_heatmap(make_heatmap(), events), draw_regions(make_regions((HOSTILE, "us")))])

    assert "<img" not in texts
    assert texts.count("&lt;img src=x") >= 3


@pytest.mark.parametrize("kind", ["plan", "rollback", "ready", "restart", "draining", "stopped", "failed"])
def test_each_kind_of_event_has_words(kind: str) -> None:
    trace = draw_heatmap(make_heatmap(), [Event(T0, kind, "r1", 1, "", "why")])["data"][-1]

    assert trace["hovertext"][0].endswith("<br>why")


def test_ticks_have_units() -> None:
    assert [format_seconds(value) for value in (0.0005, 0.2, 5, 60, 120, 3600)] == [
        "0.5 ms",
        "200 ms",
        "5 s",
        "1 min",
        "2 min",
        "1 h",
    ]
