"""Cells in memory against adding everything up by hand: whatever comes late, whenever it is stored, lost or cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pool.domain.cells import SeriesKey
from pool.telemetry.open_cells import AHEAD_S, KEEP_S, OpenCells, Taken
from pool.telemetry.rows import Kind

START_S = 1_795_982_400
KEY, OTHER_KEY = SeriesKey("chatty"), SeriesKey("terse")


@dataclass
class Tally:
    count: int = 0

    def add(self, other: Tally) -> None:
        self.count += other.count


KIND: Kind[SeriesKey, Tally] = Kind(
    name="tallies",
    key_type=SeriesKey,
    keys=object,
    id_column="",
    tables={1: object, 10: object, 300: object},
    columns=(),
    make=Tally,
    pack=lambda key, cell: (cell.count,),
    unpack=lambda key, values: Tally(values[0]),
)


@dataclass
class Tables:
    """What a database would hold."""

    rows: dict[int, dict[tuple[SeriesKey, int], int]] = field(
        default_factory=lambda: {1: {}, 10: {}, 300: {}}
    )
    closed: dict[int, int] = field(default_factory=dict)

    def store(self, taken: Taken[SeriesKey, Tally]) -> None:
        for period_s, whole in taken.whole.items():
            for key, at_s, (count,) in whole:
                self.rows[period_s][key, at_s] = count
        for period_s, late in taken.late.items():
            for place, cell in late.items():
                self.rows[period_s][place] = self.rows[period_s].get(place, 0) + cell.count
        self.closed = taken.closed

    def rebuild(self, now_s: float) -> OpenCells[SeriesKey, Tally]:
        cells = OpenCells(KIND, now_s=now_s)
        cells.begin(self.closed)
        for (key, at_s), count in self.rows[1].items():
            if at_s >= cells.floor_s:
                cells.restore_second(key, at_s, Tally(count))
        for (key, at_s), count in self.rows[10].items():
            if cells.closed[300] <= at_s < cells.closed[10]:
                cells.restore_ten(key, at_s, Tally(count))
        return cells


def expected(events: list[tuple[SeriesKey, int]]) -> dict[int, dict[tuple[SeriesKey, int], int]]:
    return {
        period_s: dict(Counter((key, at_s - at_s % period_s) for key, at_s in events))
        for period_s in (1, 10, 300)
    }


def settle_all(cells: OpenCells[SeriesKey, Tally], tables: Tables, now_s: float) -> None:
    """Long after the last event: everything is closed."""
    tables.store(cells.take(now_s=now_s + 400))


# How much time passes, how late the event is, whose it is, what happens then.
STEPS = st.lists(
    st.tuples(
        st.floats(0, 40),
        st.integers(-5, 700),
        st.sampled_from([KEY, OTHER_KEY]),
        st.sampled_from(["nothing", "nothing", "store", "store", "crash", "store and crash"]),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_event_counts_once_at_every_resolution_whatever_happens(steps: list[Any]) -> None:
    tables, now_s = Tables(), float(START_S)
    cells = tables.rebuild(now_s)
    stored: list[tuple[SeriesKey, int]] = []
    open_events: list[tuple[SeriesKey, int]] = []
    for passed_s, late_s, key, then in steps:
        now_s += passed_s
        event = (key, int(now_s) - late_s)
        cells.settle(*event, Tally(1), now_s=now_s)
        open_events.append(event)
        if then.startswith("store"):
            tables.store(cells.take(now_s=now_s))
            stored, open_events = stored + open_events, []
        if then.endswith("crash"):
            # What was not stored is read again by the next process.
            cells = tables.rebuild(now_s)
            for again in open_events:
                cells.settle(*again, Tally(1), now_s=now_s)
    settle_all(cells, tables, now_s)

    assert tables.rows == expected(stored + open_events)


@given(STEPS)
def test_storing_late_and_all_at_once_is_the_same(steps: list[Any]) -> None:
    tables, now_s = Tables(), float(START_S)
    cells, events = tables.rebuild(now_s), []
    for passed_s, late_s, key, _ in steps:
        now_s += passed_s
        events.append((key, int(now_s) - late_s))
        cells.settle(*events[-1], Tally(1), now_s=now_s)
    settle_all(cells, tables, now_s)

    assert tables.rows == expected(events)


def test_a_second_is_written_at_once_and_coarse_cells_when_they_are_over_or_due() -> None:
    cells = OpenCells(KIND, now_s=START_S)
    cells.settle(KEY, START_S, Tally(1), now_s=START_S)
    first = cells.take(now_s=START_S + 0.5)
    cells.settle(KEY, START_S + 1, Tally(1), now_s=START_S + 1)
    second = cells.take(now_s=START_S + 1.5)
    third = cells.take(now_s=START_S + 13)

    assert [len(first.whole[period_s]) for period_s in (1, 10, 300)] == [1, 1, 0]
    assert [len(second.whole[period_s]) for period_s in (1, 10, 300)] == [1, 0, 0]
    assert [row for _, _, row in third.whole[10]] == [(2,)]
    assert third.closed == {10: START_S + 10, 300: START_S}


def test_memory_lets_go_of_what_is_over() -> None:
    cells = OpenCells(KIND, now_s=START_S)
    for second in range(900):
        cells.settle(KEY, START_S + second, Tally(1), now_s=START_S + second)
        cells.take(now_s=START_S + second)

    assert cells.size < 25


def test_what_is_out_of_time_is_counted_and_dropped() -> None:
    cells = OpenCells(KIND, now_s=START_S)
    cells.settle(KEY, START_S + AHEAD_S + 1, Tally(1), now_s=START_S)
    cells.settle(KEY, START_S - KEEP_S[300] - 1, Tally(1), now_s=START_S)
    taken = cells.take(now_s=START_S)

    assert cells.out_of_time == 2
    assert not any(taken.whole.values())
    assert not any(taken.late.values())


def test_beyond_the_keep_of_one_resolution_the_coarser_ones_still_count() -> None:
    cells = OpenCells(KIND, now_s=START_S)
    cells.settle(KEY, START_S - KEEP_S[1] - 10, Tally(1), now_s=START_S)
    cells.settle(KEY, START_S - KEEP_S[10] - 10, Tally(1), now_s=START_S)
    taken = cells.take(now_s=START_S)

    assert {period_s: len(late) for period_s, late in taken.late.items()} == {1: 0, 10: 1, 300: 2}


def test_what_changed_is_published_whole_and_once() -> None:
    cells = OpenCells(KIND, now_s=START_S)
    cells.settle(KEY, START_S, Tally(1), now_s=START_S)
    cells.settle(KEY, START_S, Tally(1), now_s=START_S)
    first = [(key, at_s, cell.count) for key, at_s, cell in cells.take_touched()]
    cells.take(now_s=START_S)
    cells.settle(KEY, START_S, Tally(1), now_s=START_S)
    second = [(key, at_s, cell.count) for key, at_s, cell in cells.take_touched()]

    assert (first, second) == ([(KEY, START_S, 2)], [(KEY, START_S, 3)])
    assert list(cells.take_touched()) == []
