from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.heatmap import (
    KEPT_S,
    LARGEST_COLUMNS,
    LARGEST_ROWS,
    STEPS_S,
    InvalidRange,
    choose_columns,
    choose_rows,
    is_beyond_top,
)
from pool.domain.histogram import LAST_BUCKET, bucket_of, value_of

NOW = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
buckets = st.integers(0, LAST_BUCKET)


@pytest.mark.parametrize(
    ("length", "step_s", "resolution_s", "count"),
    [
        (timedelta(seconds=1), 1, 1, 1),
        (timedelta(minutes=5), 1, 1, 300),
        (timedelta(minutes=15), 5, 1, 180),
        (timedelta(hours=1), 20, 10, 180),
        (timedelta(hours=24), 300, 300, 288),
        (timedelta(days=396), 172800, 300, 199),
    ],
)
def test_columns_are_the_finest_that_fit(
    length: timedelta, step_s: int, resolution_s: int, count: int
) -> None:
    columns = choose_columns(NOW - length, NOW, now=NOW)

    assert (columns.step_s, columns.resolution_s, columns.count) == (step_s, resolution_s, count)
    assert columns.end - timedelta(seconds=step_s) < NOW <= columns.end


@pytest.mark.parametrize(
    ("age", "step_s"),
    [(timedelta(hours=1), 1), (timedelta(hours=3), 10), (timedelta(days=29), 10), (timedelta(days=31), 300)],
)
def test_columns_are_made_of_cells_that_are_still_kept(age: timedelta, step_s: int) -> None:
    assert choose_columns(NOW - age, NOW - age + 60 * SECOND, now=NOW).step_s == step_s


@given(
    length_s=st.integers(1, KEPT_S[300] - 1),
    end_s=st.floats(0, 3600),
    largest=st.sampled_from([60, 120, 300]),
)
def test_columns_are_whole_steps_and_never_too_many(length_s: int, end_s: float, largest: int) -> None:
    end = NOW - timedelta(seconds=end_s)
    start = max(end - timedelta(seconds=length_s), NOW - timedelta(seconds=KEPT_S[300]))

    columns = choose_columns(start, end, now=NOW, largest=min(largest, LARGEST_COLUMNS) + 150)

    assert 1 <= columns.count <= min(largest, LARGEST_COLUMNS) + 150
    assert columns.step_s in STEPS_S
    assert columns.step_s % columns.resolution_s == 0
    assert columns.start.timestamp() % columns.step_s == 0
    assert columns.end >= end
    assert abs(columns.start - start) <= columns.step_s * SECOND


def test_a_time_falls_into_its_column() -> None:
    columns = choose_columns(NOW - 60 * SECOND, NOW, now=NOW)

    assert [columns.column_of(NOW - ago * SECOND) for ago in (61, 60, 1, 0.5, 0)] == [None, 0, 59, 59, None]


@pytest.mark.parametrize(
    ("start", "end", "step_s", "says"),
    [
        (NOW, NOW, None, "ends before it begins"),
        (NOW + SECOND, NOW + 2 * SECOND, None, "in the future"),
        (NOW - timedelta(days=397), NOW, None, "396 days"),
        (NOW - timedelta(days=300), NOW + timedelta(days=900), None, "longer than 300 columns"),
        (NOW - timedelta(hours=1), NOW, 10, "Take one of 20"),
        (NOW - timedelta(hours=3), NOW - timedelta(hours=3) + 60 * SECOND, 1, "Take one of 10"),
    ],
)
def test_a_range_without_an_answer_is_refused(
    start: datetime, end: datetime, step_s: int | None, says: str
) -> None:
    with pytest.raises(InvalidRange, match=says):
        choose_columns(start, end, now=NOW, step_s=step_s)


@given(first=buckets, second=buckets, largest=st.sampled_from([30, LARGEST_ROWS]))
def test_rows_hold_the_whole_span(first: int, second: int, largest: int) -> None:
    low, high = min(first, second), max(first, second)

    rows = choose_rows(low, high, largest=largest)

    assert 24 <= rows.count <= largest
    assert rows.row_of(low) is not None
    assert rows.row_of(high) is not None


@given(buckets)
def test_a_value_lies_between_the_edges_of_its_row(bucket: int) -> None:
    rows = choose_rows(bucket, bucket)

    row = rows.row_of(bucket)

    assert row is not None
    edges = rows.edges_s()
    assert len(edges) == rows.count + 1
    assert edges[row] <= value_of(bucket) <= edges[row + 1]


def test_the_axis_does_not_move_with_every_sample() -> None:
    around = {choose_rows(bucket_of(0.1), bucket_of(seconds)) for seconds in (1.0, 1.02, 1.04)}

    assert len(around) == 1


def test_what_takes_an_hour_is_beyond_the_top_fc62() -> None:
    assert is_beyond_top(value_of(LAST_BUCKET)) is True
    assert is_beyond_top(value_of(LAST_BUCKET - 1)) is False
    assert is_beyond_top(700.0) is False
    assert is_beyond_top(None) is False
    assert choose_rows(0, LAST_BUCKET).with_top() is True
    assert choose_rows(0, bucket_of(1.0)).with_top() is False
