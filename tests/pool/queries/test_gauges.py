from datetime import UTC, datetime, timedelta

import pytest

from pool.domain.gauges import GaugeCell, Subject
from pool.domain.histogram import Histogram
from pool.queries.gauges import find_subjects, list_counters, list_gauge_bytes, list_gauge_cells, offset_of
from pool.telemetry.store import add_gauges

AT = datetime(2026, 11, 29, 20, 0, 5, tzinfo=UTC)
END = AT + timedelta(hours=1)
R1 = Subject("replica", "r1", node="n1", model="chatty", release=1, lane="short")
R2 = Subject("replica", "r2", node="n1", model="chatty", release=2, lane="long")

pytestmark = pytest.mark.django_db


def make_cell(usage: float) -> GaugeCell:
    cell = GaugeCell(counters={"preemptions": 2.0}, steps={"decode": Histogram.of([0.02])})
    cell.note("kv_used_blocks", usage)
    return cell


def test_cells_come_back_as_they_were_stored() -> None:
    add_gauges({(R1, AT): make_cell(7), (R2, AT): make_cell(9)})
    subjects = find_subjects("replica", model="chatty")

    cells = list_gauge_cells(subjects, AT, END, 1)

    found = [(subjects[number], at, cell) for number, at, cell in cells]
    assert sorted(found, key=lambda row: row[0].name) == [(R1, AT, make_cell(7)), (R2, AT, make_cell(9))]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"releases": [2]}, [R2]),
        ({"lanes": ["short"]}, [R1]),
        ({"names": ["r2"]}, [R2]),
        ({"names": []}, []),
        ({"node": "n2"}, []),
        ({"model": "chatty"}, [R1, R2]),
    ],
)
def test_subjects_are_found_by_what_they_are(wanted: dict[str, object], found: list[Subject]) -> None:
    add_gauges({(R1, AT): make_cell(7), (R2, AT): make_cell(9)})

    subjects = find_subjects("replica", **wanted)  # type: ignore[arg-type]

    assert sorted(subjects.values(), key=lambda one: one.name) == found


def test_only_the_wished_histograms_are_read() -> None:
    add_gauges({(R1, AT): make_cell(7)})

    [(_, _, cell)] = list_gauge_cells(find_subjects("replica"), AT, END, 1, steps=())

    assert cell.steps == {}
    assert cell.counters == {"preemptions": 2.0}


def test_the_end_is_not_part_of_the_time() -> None:
    add_gauges({(R1, AT): make_cell(7)})
    subjects = find_subjects("replica")

    assert list_counters(subjects, AT - timedelta(hours=1), AT, 1) == []
    assert [counters for _, _, counters in list_counters(subjects, AT, END, 1)] == [{"preemptions": 2.0}]


def test_one_gauge_stands_at_its_offset_in_the_bytes() -> None:
    add_gauges({(R1, AT): make_cell(7)})

    [(_, _, content)] = list_gauge_bytes(find_subjects("replica"), AT, END, 1)

    offset = offset_of("replica", "kv_used_blocks")
    assert len(content) == offset + offset_of("replica", "waiting")
