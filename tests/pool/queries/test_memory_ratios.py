from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pool.domain.gauges import GAUGE_BYTES, GaugeCell, Subject
from pool.queries import memory_ratios
from pool.queries.ages import FigureState
from pool.queries.memory_ratios import RatioKind, RatioMap, load_ratio_map
from tests.memory_seed import make_cell, store_sample

END = datetime(2026, 11, 29, 20, 0, 0, tzinfo=UTC)
START = END - timedelta(minutes=5)
SECOND = timedelta(seconds=1)
R1 = Subject("replica", "r1", node="n1", model="chatty", release=1, lane="short")

pytestmark = pytest.mark.django_db


def load(kind: RatioKind, *, start: datetime = START, end: datetime = END, model: str = "") -> RatioMap:
    return load_ratio_map(kind, start=start, end=end, now=END, model=model)


def test_without_samples_there_is_no_row_and_no_age() -> None:
    found = load(RatioKind.KV_USE)

    assert (found.rows, found.columns, found.column_s) == ((), 300, 1)
    assert found.newest.state is FigureState.ABSENT


def test_each_second_has_its_share_and_a_gap_stays_a_gap() -> None:
    store_sample(R1, START + 1 * SECOND, make_cell(used=10, reusable=30, free=60))
    store_sample(R1, START + 4 * SECOND, make_cell(used=90, reusable=0, free=10))

    [row] = load(RatioKind.KV_USE).rows

    assert row.means[:6] == (None, 0.1, None, None, 0.9, None)
    assert row.samples[:6] == (0, 1, 0, 0, 1, 0)
    assert (row.replica, row.model, row.release, row.lane, row.node) == ("r1", "chatty", 1, "short", "n1")


def test_a_column_of_several_samples_divides_sums_and_keeps_the_peak() -> None:
    start = END - timedelta(hours=1)
    store_sample(R1, start + 1 * SECOND, make_cell(used=10, free=90))
    store_sample(R1, start + 3 * SECOND, make_cell(used=90, free=10))

    found = load(RatioKind.KV_USE, start=start)

    assert (found.column_s, found.columns) == (20, 180)
    assert (found.rows[0].means[0], found.rows[0].highs[0], found.rows[0].samples[0]) == (0.5, 0.9, 2)


def test_a_tail_of_few_blocks_is_0_and_not_missing() -> None:
    store_sample(R1, START, make_cell(used=3, free=97, tail=0.6))
    store_sample(R1, START + SECOND, make_cell(used=64, free=36, tail=0.25))

    [row] = load(RatioKind.KV_TAIL).rows

    assert row.means[:3] == (0.0, 0.25, None)


def test_steps_and_looks_may_have_told_unequally_often() -> None:
    cell = make_cell(used=10, free=90)
    for used in (20, 30, 60):
        cell.note("kv_used_blocks", used)
    store_sample(R1, START, cell)

    [row] = load(RatioKind.KV_USE).rows

    assert (row.means[0], row.highs[0], row.samples[0]) == (0.3, 0.6, 4)


def test_use_of_a_cache_of_unknown_size_is_unknown() -> None:
    cell = GaugeCell()
    cell.note("kv_used_blocks", 4)
    store_sample(R1, START, cell)

    assert load(RatioKind.KV_USE).rows == ()


def test_the_allocator_has_rows_only_where_cuda_is() -> None:
    store_sample(R1, START, make_cell(used=1))
    cuda = Subject("replica", "r2", node="n1", model="chatty", release=2)
    store_sample(cuda, START, make_cell(used=1, gauges={"allocator_ratio": 0.31}))

    assert [(row.replica, row.means[0]) for row in load(RatioKind.ALLOCATOR).rows] == [("r2", 0.31)]


def test_a_replica_that_changed_its_lane_is_one_row() -> None:
    later = Subject("replica", "r1", node="n1", model="chatty", release=1, lane="long")
    store_sample(R1, START, make_cell(used=1, free=9))
    store_sample(later, START + SECOND, make_cell(used=2, free=8))

    [row] = load(RatioKind.KV_USE, model="chatty").rows

    assert (row.lane, row.means[:2]) == ("long", (0.1, 0.2))
    assert load(RatioKind.KV_USE, model="other").rows == ()


@pytest.mark.parametrize(
    ("minutes", "column_s", "columns"),
    [(5, 1, 300), (15, 10, 90), (60, 20, 180), (120, 30, 240), (24 * 60, 300, 288), (7 * 24 * 60, 2100, 289)],
)
def test_columns_fit_the_length_of_time(minutes: int, column_s: int, columns: int) -> None:
    found = load(RatioKind.KV_USE, start=END - timedelta(minutes=minutes))

    assert (found.column_s, found.columns) == (column_s, columns)


def test_the_newest_sample_tells_the_age() -> None:
    store_sample(R1, END - 40 * SECOND, make_cell(used=1, free=9))

    newest = load(RatioKind.KV_USE).newest

    assert (newest.age_s, newest.state) == (39.0, FigureState.STALE)


def test_beyond_the_largest_number_of_rows_the_highest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_ratios, "MOST_ROWS", 2)
    for index, used in enumerate((10, 50, 90)):
        subject = Subject("replica", f"r{index}", node="n1", model="chatty", release=1)
        store_sample(subject, START, make_cell(used=used, free=100 - used))

    found = load(RatioKind.KV_USE)

    assert [row.replica for row in found.rows] == ["r1", "r2"]
    assert found.left_out == 1


def test_arrays_read_gauges_as_they_are_packed() -> None:
    assert memory_ratios._GAUGE.itemsize == GAUGE_BYTES
