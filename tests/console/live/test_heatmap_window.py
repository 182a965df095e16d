"""The live window: whole cells in any order, merged columns, bounded memory, frames."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.live import heatmap_window
from console.live.heatmap_frames import BEAT, CHANGES, HEAD_BYTES, WHOLE, State, encode_frame
from console.live.heatmap_window import RECENT_S, WINDOW_S, HeatmapWindow, Wanted
from pool.domain.cells import SeriesKey
from pool.domain.histogram import Histogram

NOW_S = 1_800_000_000.0
AT_S = int(NOW_S) - 3
A = SeriesKey("qwen", release=1, replica="a", lane="short")
B = replace(A, replica="b")


def make_window(**wanted: object) -> HeatmapWindow:
    return HeatmapWindow(Wanted(model="qwen", **wanted))  # type: ignore[arg-type]


def test_percentiles_are_taken_after_merging_series() -> None:
    """FC-62: 980 calls at 50 ms on one replica and 20 at 5 s on another: P99 is 5 s."""
    window = make_window()
    window.add(AT_S, A, Histogram.of([0.05] * 980), now_s=NOW_S)
    window.add(AT_S, B, Histogram.of([5.0] * 20), now_s=NOW_S)

    assert window.settle(now_s=NOW_S)
    [column] = window.columns(since=0)

    assert column.samples == sum(column.counts) == 1000
    assert column.quantiles[0] == pytest.approx(0.05, rel=0.01)
    assert column.quantiles[2] == pytest.approx(5.0, rel=0.01)
    assert window.summary(now_s=NOW_S).quantiles == column.quantiles


@given(st.randoms(use_true_random=False))
def test_whole_cells_may_come_twice_and_in_any_order(chance: random.Random) -> None:
    steps = [(AT_S, key, Histogram.of([0.1] * count)) for key in (A, B) for count in (1, 4, 9)]
    chance.shuffle(steps)
    window = make_window()

    for step in [*steps, *steps[:3]]:
        if chance.random() < 0.5:
            window.add(*step, now_s=NOW_S)
        else:
            window.fill([step], now_s=NOW_S)
        window.settle(now_s=NOW_S)

    assert [column.samples for column in window.columns(since=0)] == [18]


@pytest.mark.parametrize(
    ("wanted", "counts"),
    [
        ({}, True),
        ({"release": 1, "replica": "a", "lane": "short"}, True),
        ({"release": 2}, False),
        ({"replica": "b"}, False),
        ({"tier": "vip"}, False),
        ({"long_prompt": True}, False),
    ],
)
def test_only_what_is_wanted_counts(wanted: dict[str, object], counts: bool) -> None:
    window = make_window(**wanted)

    window.add(AT_S, A, Histogram.of([0.1]), now_s=NOW_S)
    window.add(AT_S, replace(A, model="other"), Histogram.of([0.1]), now_s=NOW_S)
    window.add(AT_S, SeriesKey("qwen", region="de"), Histogram.of([0.1]), now_s=NOW_S)

    assert window.settle(now_s=NOW_S) is counts


def test_a_late_cell_is_read_from_the_database_with_its_neighbours() -> None:
    window, late_s = make_window(), int(NOW_S) - RECENT_S - 5
    window.fill([(late_s, A, Histogram.of([0.1] * 4)), (late_s, B, Histogram.of([0.1]))], now_s=NOW_S)
    window.settle(now_s=NOW_S)

    window.add(late_s, B, Histogram.of([0.1] * 2), now_s=NOW_S)
    assert window.late == {late_s}
    window.fill([(late_s, A, Histogram.of([0.1] * 4)), (late_s, B, Histogram.of([0.1] * 2))], now_s=NOW_S)
    window.settle(now_s=NOW_S)

    assert [column.samples for column in window.columns(since=0)] == [6]
    assert not window.late


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heatmap_window, "MOST_RECENT_CELLS", 50)
    window = make_window()

    for second in range(1000):
        for number in range(10):
            key = replace(A, replica=f"r{number}")
            window.add(AT_S + second, key, Histogram.of([0.1]), now_s=NOW_S + second)
        window.settle(now_s=NOW_S + second)

    assert window._recent_cells <= 60
    assert len(window._merged) == len(window._changed_at) == WINDOW_S - 2
    assert {column.samples for column in window.columns(since=0)} == {10}


def test_a_second_whose_series_were_forgotten_is_never_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heatmap_window, "MOST_RECENT_CELLS", 1)
    window = make_window()
    window.add(AT_S, A, Histogram.of([0.1] * 9), now_s=NOW_S)
    window.add(AT_S, B, Histogram.of([0.1] * 9), now_s=NOW_S)
    window.settle(now_s=NOW_S)

    window.add(AT_S, B, Histogram.of([0.1] * 10), now_s=NOW_S)
    window.settle(now_s=NOW_S)

    assert [column.samples for column in window.columns(since=0)] == [18]
    assert window.late == {AT_S}


def test_a_clock_far_ahead_is_not_believed() -> None:
    window = make_window()

    window.add(int(NOW_S) + 3600, A, Histogram.of([0.1]), now_s=NOW_S)

    assert not window.settle(now_s=NOW_S)


def read_head(frame: bytes) -> tuple[float, ...]:
    return struct.unpack("<BBBxHHHxxIIIIddfff8x", frame[:HEAD_BYTES])


def test_a_frame_holds_the_whole_then_changes_then_a_beat() -> None:
    window = make_window()
    window.add(AT_S, A, Histogram.of([0.1, 0.1]), now_s=NOW_S)
    window.settle(now_s=NOW_S)

    whole = encode_frame(window, since=None, now_s=NOW_S, state=State.LIVE, state_since_s=None)
    window.add(AT_S + 1, A, Histogram.of([0.1]), now_s=NOW_S)
    window.settle(now_s=NOW_S)
    changes = encode_frame(window, since=1, now_s=NOW_S, state=State.POLLED, state_since_s=7.0)
    beat = encode_frame(window, since=2, now_s=NOW_S, state=State.LIVE, state_since_s=None)

    version, kind, state, rows, first, step, seq, before, columns, samples, *_ = read_head(whole)
    assert (version, kind, state, seq, before, columns, samples) == (1, WHOLE, State.LIVE, 1, 0, 1, 2)
    assert (first, step, rows) == (window.rows.first, window.rows.per_row, window.rows.count)
    assert len(whole) == HEAD_BYTES + 24 + 4 * int(rows)
    at_s, in_column, p50 = struct.unpack_from("<dIf", whole, HEAD_BYTES)
    assert (at_s, in_column) == (AT_S, 2)
    assert p50 == pytest.approx(0.1, rel=0.01)
    assert read_head(changes)[1:3] == (CHANGES, State.POLLED)
    assert read_head(changes)[6:9] == (2, 1, 1)
    assert read_head(changes)[11] == 7.0
    assert read_head(beat)[1] == BEAT
    assert len(beat) == HEAD_BYTES


def test_without_a_sample_nothing_is_zero() -> None:
    frame = encode_frame(make_window(), since=None, now_s=NOW_S, state=State.LIVE, state_since_s=None)

    assert read_head(frame)[3] == 0
    assert all(math.isnan(value) for value in read_head(frame)[11:])


def test_new_rows_make_every_browser_start_over() -> None:
    window = make_window()
    window.add(AT_S, A, Histogram.of([0.1]), now_s=NOW_S)
    window.settle(now_s=NOW_S)
    window.add(AT_S, B, Histogram.of([60.0]), now_s=NOW_S)
    window.settle(now_s=NOW_S)

    frame = encode_frame(window, since=1, now_s=NOW_S, state=State.LIVE, state_since_s=None)

    assert read_head(frame)[1] == WHOLE
