from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.models import RESOLUTIONS, SecondCell, StreamPosition, TenSecondGauge
from pool.queries.cells import CellFilter, find_series, list_cells, sum_cells
from pool.queries.traffic import list_recent_traffic
from pool.telemetry.facts import MOST_REGIONS, OTHER, fold
from pool.telemetry.rows import GAUGE_CELLS
from pool.telemetry.store import add_cells, add_gauges, move_position, read_position

AT = 1_795_982_405.0
STREAM = "sluice:i-test:facts"
_ids = iter(range(1_000_000))


def make_fact(**values: Any) -> dict[str, Any]:
    return {
        "request_id": f"req-{next(_ids)}",
        "at": AT,
        "model": "chatty",
        "release": 1,
        "replica": "r1",
        "lane": "short",
        "tier": "standard",
        "status": 200,
        "outcome": "ok",
        "ttft_s": 0.2,
        "e2e_s": 1.0,
        "output_tokens": 10,
    } | values


def total_of(facts: list[dict[str, Any]]) -> Cell:
    return sum_cells(fold(facts).cells.values())


def test_a_request_is_counted_in_the_second_of_its_end() -> None:
    folded = fold([make_fact(), make_fact(e2e_s=4.0), make_fact(release=2)])

    assert folded.unreadable == 0
    assert [(key.release, at.timestamp() - AT) for key, at in sorted(folded.cells, key=repr)] == [
        (1, 1.0),
        (1, 4.0),
        (2, 1.0),
    ]


def test_errors_are_ours_and_a_callers_mistake_is_not() -> None:
    counts = total_of([make_fact(status=502), make_fact(status=400), make_fact(outcome="interrupted")]).counts

    assert (counts["requests"], counts["errors"], counts["interrupted"]) == (3, 2, 1)


def test_a_fact_without_a_first_token_is_counted_and_gives_no_time_fc29() -> None:
    cell = total_of([make_fact(ttft_s=None)])

    assert cell.counts["requests"] == 1
    assert "ttft" not in cell.stages


@pytest.mark.parametrize("bad", [{"at": "soon"}, {"model": None, "at": None}, {"ttft_s": float("nan")}])
def test_what_cannot_be_read_is_counted_and_dropped(bad: dict[str, Any]) -> None:
    folded = fold([make_fact(**bad)])

    assert (folded.cells, folded.records, folded.unreadable) == ({}, [], 1)


def test_a_region_counts_beside_the_series() -> None:
    folded = fold([make_fact(region="eu"), make_fact()])

    assert sorted((key.region, cell.counts["requests"]) for (key, _), cell in folded.cells.items()) == [
        ("", 2),
        ("eu", 1),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"model": "<script>alert(1)</script>"},
        {"replica": "../r1"},
        {"node": "a/b"},
        {"request_id": "req/1"},
        {"gaps": [0.1, {"-1": 1}]},
        {"gaps": [0.1, {"3": 1.5}]},
        {"gaps": [0.1, {"99999": 1}]},
        {"gaps": [0.1, {"3": "many"}]},
        {"prompt_tokens": -1},
        {"prompt_tokens": 2**31},
        {"model": "a\0b"},
        {"tries": 7},
    ],
)
def test_what_no_column_or_address_could_hold_never_reaches_the_database_fc55(bad: dict[str, Any]) -> None:
    assert fold([make_fact(**bad)]).unreadable == 1


def test_regions_that_callers_make_up_count_as_other() -> None:
    folded = fold([make_fact(region=f"place-{number}") for number in range(MOST_REGIONS + 10)])

    regions = {key.region: cell.counts["requests"] for (key, _), cell in folded.cells.items() if key.region}
    assert len(regions) == MOST_REGIONS + 1
    assert regions[OTHER] == 10


@pytest.mark.django_db
def test_cells_add_up_at_every_resolution_and_the_position_moves() -> None:
    cells = fold([make_fact(), make_fact(ttft_s=0.4)]).cells
    now = datetime.now(UTC)

    add_cells(cells)
    add_cells(fold([make_fact(), make_fact(ttft_s=0.4)]).cells)
    move_position(STREAM, "6-0", unreadable=1, now=now)

    end = datetime.fromtimestamp(AT + 300, tz=UTC)
    for resolution_s in RESOLUTIONS:
        ((_, _, cell),) = list_cells(
            find_series(CellFilter(model="chatty")),
            start=end - timedelta(hours=1),
            end=end,
            resolution_s=resolution_s,
        )
        assert (cell.counts["requests"], cell.stages["ttft"].count) == (4, 4)
    assert read_position(STREAM) == "6-0"
    assert StreamPosition.objects.get().dropped == 1


@pytest.mark.django_db
def test_gauges_add_up_and_what_was_not_measured_is_missing() -> None:
    subject = Subject("replica", "r1", node="n1", model="chatty", release=1)
    at = datetime.fromtimestamp(AT, tz=UTC)
    for value in (2.0, 6.0):
        cell = GaugeCell()
        cell.note("running", value)
        cell.count("steps", 10)
        add_gauges({(subject, at + timedelta(seconds=value)): cell})

    total = GaugeCell()
    for row in TenSecondGauge.objects.all():
        values = [getattr(row, name) for name in GAUGE_CELLS.columns]
        total.add(GAUGE_CELLS.unpack(subject, values))

    assert (total.gauges["running"].low, total.gauges["running"].mean, total.gauges["running"].high) == (
        2,
        4,
        6,
    )
    assert total.counters == {"steps": 20}
    assert set(total.gauges) == {"running"}


@pytest.mark.django_db
def test_quantiles_are_taken_after_merging_fc30() -> None:
    now = datetime.fromtimestamp(AT + 20, tz=UTC)
    facts = [make_fact(ttft_s=0.05, replica="r1") for _ in range(980)]
    facts += [make_fact(ttft_s=5.0, replica="r2") for _ in range(20)]
    add_cells(fold(facts).cells)

    (view,) = list_recent_traffic("chatty", now=now)

    assert view.samples == 1000
    assert view.ttft_p99_s == pytest.approx(5.0, rel=0.01)
    assert view.ttft_p50_s == pytest.approx(0.05, rel=0.01)
    assert view.error_ratio == 0
    assert {key.replica for key in find_series(CellFilter(model="chatty")).values()} == {"r1", "r2"}
    assert SecondCell.objects.count() == 2
    assert SeriesKey("chatty", release=1, replica="r1", lane="short", tier="standard") in set(
        find_series(CellFilter(model="chatty")).values()
    )


def test_times_beyond_ten_minutes_keep_their_size_fc62() -> None:
    stages = total_of([make_fact(e2e_s=700.0, ttft_s=650.0) for _ in range(5)]).stages

    assert stages["e2e"].quantile(0.99) == pytest.approx(700.0, rel=0.01)
    assert stages["ttft"].quantile(0.99) == pytest.approx(650.0, rel=0.01)
