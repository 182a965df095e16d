"""What a replica's figures look like, also when they are not as expected: a page must not break on them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from console.live.screens.figures import spark_points, warm_up_rows
from workers.warmup import LaneFigures, WarmUpFigures


def make_warm_up(**values: Any) -> dict[str, Any]:
    """As the node stores it, after JSON."""
    lane = LaneFigures("short", 8, 256, first_ttft_s=0.4, ttft_s=0.05, plateau=True, ttfts_s=(0.4, 0.1, 0.05))
    figures = WarmUpFigures(8, 3.2, 0.4, 900.0, 80.0, lanes=(lane,), routes=("chat",))
    stored = asdict(figures) | values
    stored["lanes"] = [lane | {"ttfts_s": list(lane["ttfts_s"])} for lane in stored["lanes"]]
    return {"warm_up": stored}


def test_a_lane_shows_where_it_began_and_where_it_levelled_off() -> None:
    [row] = warm_up_rows(make_warm_up())

    assert (row["lane"], row["requests"], row["first"], row["last"]) == ("short", "8", "400 ms", "50 ms")
    assert row["has_points"]
    assert not row["uneven"]


@pytest.mark.parametrize(
    "figures", [{}, {"warm_up": None}, {"warm_up": {}}, {"warm_up": {"lanes": {"short": 1}}}]
)
def test_figures_of_another_shape_show_nothing(figures: dict[str, Any]) -> None:
    assert warm_up_rows(figures) == []


def test_a_lane_without_figures_shows_dashes() -> None:
    [row] = warm_up_rows({"warm_up": {"lanes": [{"lane": "mid", "ttft_s": "fast", "ttfts_s": 3}]}})

    assert (row["first"], row["last"], row["has_points"]) == ("—", "—", False)


def test_one_point_is_no_line() -> None:
    assert spark_points([0.1]) == ""
    assert spark_points([0.0, 0.0]) == "0.0,19.0 100.0,19.0"
