"""The picture of a rollout's evidence: that plotly accepts it is what building it checks."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from console.figures.evidence import draw_evidence
from pool.queries.rollout_evidence import Evidence, GateLine, Mark
from tests.factories import T0


def make_evidence(*gates: str) -> Evidence:
    at = (T0, T0 + timedelta(seconds=10))
    lines = tuple(
        GateLine(gate, gate == "itl", at, (-0.5, 0.4), (0.2, 3.0), ("not_yet", "not_worse")) for gate in gates
    )
    return Evidence("o1", T0, T0 + timedelta(minutes=1), lines, (Mark(T0, "Step 1 of 2: 5 %."),))


def test_each_gate_has_a_plot_of_its_own_with_both_lines() -> None:
    figure = draw_evidence(make_evidence("errors", "ttft", "itl", "shape"))

    assert len(figure["data"]) == 8
    assert [trace["xaxis"] for trace in figure["data"][::2]] == ["x", "x2", "x3", "x4"]
    assert [one["text"] for one in figure["layout"]["annotations"]][
        2
    ] == "Mean gap between tokens · reports only"
    assert figure["layout"]["meta"] == {"rows": 2}
    json.dumps(figure)


def test_lines_stay_in_the_plot_and_the_tip_tells_the_true_value() -> None:
    worse, not_worse = draw_evidence(make_evidence("errors"))["data"]

    assert tuple(worse["y"]) == (0.0, 0.4)
    assert tuple(worse["customdata"]) == (-0.5, 0.4)
    assert max(not_worse["y"]) < 1.2
    assert tuple(not_worse["customdata"]) == (0.2, 3.0)


@pytest.mark.parametrize(("columns", "rows"), [(1, 4), (2, 2), (3, 2)])
def test_plots_fill_rows_without_touching(columns: int, rows: int) -> None:
    layout = draw_evidence(make_evidence("errors", "ttft", "itl", "shape"), columns=columns)["layout"]

    heights = [layout[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert layout["meta"]["rows"] == rows
    assert all(0 <= low < high <= 1 for low, high in heights)
    assert layout["yaxis"]["domain"][0] >= layout["yaxis4"]["domain"][1]


def test_without_readings_there_is_an_empty_picture() -> None:
    assert draw_evidence(make_evidence())["data"] == []
