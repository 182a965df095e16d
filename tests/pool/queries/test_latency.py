"""Heatmaps, differences and regions against stored cells, and against brute force over raw values."""

from __future__ import annotations

import math
import random
from datetime import timedelta

import pytest
from django.db import ProgrammingError
from pytest_django import DjangoAssertNumQueries

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.domain.heatmap import choose_columns
from pool.domain.histogram import LAST_BUCKET, Histogram
from pool.queries.ages import FigureState
from pool.queries.cells import CellFilter
from pool.queries.histograms import fetch_binary, sum_histograms
from pool.queries.latency import load_difference, load_heatmap, load_regions
from pool.telemetry.store import add_cells, add_gauges
from tests.factories import T0

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
NOW = T0 + 5 * MINUTE
WANTED = CellFilter(model="smollm2")


def make_cell(values: list[float], stage: str = "ttft") -> Cell:
    return Cell(counts={"requests": len(values)}, stages={stage: Histogram.of(values)})


def make_key(**values: object) -> SeriesKey:
    return SeriesKey(**({"model": "smollm2", "release": 1, "replica": "r1", "lane": "short"} | values))  # type: ignore[arg-type]


def exact(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def test_the_fleets_p99_is_that_of_all_requests_and_no_mean_fc30() -> None:
    add_cells(
        {
            (make_key(replica="ra"), T0): make_cell([0.05] * 980),
            (make_key(replica="rb"), T0): make_cell([5.0] * 20),
        }
    )

    picture = load_heatmap(WANTED, "ttft", choose_columns(T0, NOW, now=NOW), now=NOW)

    assert picture.total.samples == picture.samples[0] == 1000
    assert picture.total.p99_s == pytest.approx(5.0, rel=0.01)
    assert picture.total.p50_s == pytest.approx(0.05, rel=0.01)
    assert picture.lines[2].seconds[0] == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize("step_s", [1, 10, 300])
def test_quantiles_are_within_one_percent_of_all_raw_values_at_each_resolution(step_s: int) -> None:
    draw = random.Random(step_s)
    cells, raw = {}, []
    for replica in range(4):
        for second in range(0, 300, 7):
            values = [draw.lognormvariate(-1, 1.2) for _ in range(draw.randrange(1, 9))]
            cells[make_key(replica=f"r{replica}"), T0 + timedelta(seconds=second)] = make_cell(values)
            raw += values
    add_cells(cells)

    picture = load_heatmap(WANTED, "ttft", choose_columns(T0, NOW, now=NOW, step_s=step_s), now=NOW)

    assert sum(map(sum, picture.counts)) == sum(picture.samples) == picture.total.samples == len(raw)
    for share, value in (
        (0.5, picture.total.p50_s),
        (0.95, picture.total.p95_s),
        (0.99, picture.total.p99_s),
    ):
        assert value == pytest.approx(exact(raw, share), rel=0.0101)
    assert picture.total.mean_s == pytest.approx(sum(raw) / len(raw), rel=1e-4)


def test_a_column_without_requests_has_no_figure_and_is_not_zero_fc11() -> None:
    add_cells({(make_key(), T0 + MINUTE): make_cell([0.2])})

    picture = load_heatmap(WANTED, "ttft", choose_columns(T0, NOW, now=NOW), now=NOW)

    assert picture.lines[0].seconds[:2] == (None, None)
    assert picture.lines[0].seconds[60] == pytest.approx(0.2, rel=0.01)
    assert (picture.samples[60], picture.data.empty_columns) == (1, 299)
    assert picture.lines[2].enough[60] is False


def test_a_range_without_any_request_is_empty_and_says_so_fc11() -> None:
    picture = load_heatmap(WANTED, "ttft", choose_columns(T0, NOW, now=NOW), now=NOW)

    assert picture.total.samples == 0
    assert (picture.total.p50_s, picture.total.mean_s) == (None, None)
    assert set(picture.lines[1].seconds) == {None}
    assert (picture.data.state, picture.data.age_s) == (FigureState.ABSENT, None)
    assert picture.data.facts_dropped is None


def test_calls_beyond_the_top_are_flagged_and_those_below_are_measured_fc62() -> None:
    add_cells({(make_key(), T0): make_cell([700.0] * 5, "e2e")})
    add_cells({(make_key(), T0 + MINUTE): make_cell([4000.0] * 5, "e2e")})

    picture = load_heatmap(WANTED, "e2e", choose_columns(T0, NOW, now=NOW), now=NOW)

    p99 = picture.lines[2]
    assert p99.seconds[0] == pytest.approx(700, rel=0.01)
    assert p99.beyond_top[0] is False
    assert p99.seconds[60] is not None
    assert p99.seconds[60] >= 3500
    assert (p99.beyond_top[60], picture.has_top, picture.total.beyond_top) == (True, True, True)


def test_the_newest_second_tells_how_old_the_figures_are() -> None:
    add_cells({(make_key(), NOW - timedelta(seconds=3)): make_cell([0.2])})
    columns = choose_columns(T0, NOW, now=NOW)

    young = load_heatmap(WANTED, "ttft", columns, now=NOW).data
    old = load_heatmap(
        WANTED, "ttft", choose_columns(T0, NOW + MINUTE, now=NOW + MINUTE), now=NOW + MINUTE
    ).data

    assert (young.state, young.age_s) == (FigureState.MEASURED, 2.0)
    assert (old.state, old.age_s) == (FigureState.STALE, 62.0)


def test_facts_that_gateways_dropped_in_the_range_are_told() -> None:
    cells = [(T0, 3.0), (T0 + MINUTE, 4.0), (T0 - MINUTE, 100.0)]
    add_gauges(
        {
            (Subject("process", "gateway-1"), at): GaugeCell(counters={"facts": 9, "facts_dropped": dropped})
            for at, dropped in cells
        }
    )

    data = load_heatmap(WANTED, "ttft", choose_columns(T0, NOW, now=NOW), now=NOW).data

    assert data.facts_dropped == 7


def test_the_filter_chooses_series() -> None:
    add_cells(
        {
            (make_key(lane="short"), T0): make_cell([0.1]),
            (make_key(lane="long", long_prompt=True), T0): make_cell([3.0]),
            (make_key(model="other"), T0): make_cell([9.0]),
            (SeriesKey(model="smollm2", region="eu"), T0): make_cell([0.1]),
        }
    )
    columns = choose_columns(T0, NOW, now=NOW)

    everything = load_heatmap(WANTED, "ttft", columns, now=NOW)
    long = load_heatmap(CellFilter(model="smollm2", long_prompt=True), "ttft", columns, now=NOW)

    assert (everything.total.samples, long.total.samples) == (2, 1)
    assert long.total.p50_s == pytest.approx(3.0, rel=0.01)


def test_a_day_takes_as_many_queries_as_a_minute(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    add_cells({(make_key(replica=f"r{n}"), T0 + n * MINUTE): make_cell([0.1]) for n in range(5)})
    later = T0 + timedelta(days=1)
    columns = choose_columns(T0 - timedelta(hours=1), T0 + timedelta(hours=23), now=later)

    with django_assert_num_queries(2):
        # The two that join bytes go past Django's count.
        picture = load_heatmap(WANTED, "ttft", columns, now=later)

    assert (picture.step_s, picture.resolution_s, picture.total.samples) == (300, 300, 5)


def test_a_slower_release_stands_out_and_chance_is_grey() -> None:
    draw = random.Random(1)
    for release, mean in ((1, -1.5), (2, -0.9)):
        values = [draw.lognormvariate(mean, 0.3) for _ in range(120)]
        add_cells({(make_key(release=release), T0): make_cell(values)})
    columns = choose_columns(T0, T0 + timedelta(seconds=20), now=NOW, step_s=20, largest=60)

    picture = load_difference(WANTED, "ttft", columns, base=1, release=2, now=NOW)

    differences = [row[0] for row in picture.differences]
    assert sum(value for value in differences if value is not None) == pytest.approx(0, abs=1e-9)
    assert any(row[0] for row in picture.significant)
    slow = max(range(len(differences)), key=lambda row: differences[row] or 0)
    assert picture.edges_s[slow] > 0.3
    assert picture.summaries[1].p50_s > picture.summaries[0].p50_s  # type: ignore[operator]


def test_one_release_against_itself_is_all_grey() -> None:
    draw = random.Random(3)
    values = [[draw.lognormvariate(-1, 0.5) for _ in range(200)] for _ in range(2)]
    add_cells({(make_key(release=n + 1), T0): make_cell(values[n]) for n in range(2)})
    columns = choose_columns(T0, NOW, now=NOW, step_s=300)

    picture = load_difference(WANTED, "ttft", columns, base=1, release=2, now=NOW)

    assert not any(any(row) for row in picture.significant)


def test_a_column_that_one_release_has_no_requests_in_has_no_difference_fc11() -> None:
    add_cells({(make_key(release=1), T0): make_cell([0.1] * 50)})
    columns = choose_columns(T0, NOW, now=NOW, step_s=300)

    picture = load_difference(WANTED, "ttft", columns, base=1, release=2, now=NOW)

    assert {row[0] for row in picture.differences} == {None}
    assert (picture.base_samples[0], picture.release_samples[0]) == (50, 0)
    assert picture.release_data.state is FigureState.ABSENT


def test_many_gaps_of_one_stream_are_one_witness() -> None:
    gaps = {1: [0.02] * 4000, 2: [0.03] * 4000}
    add_cells(
        {
            (make_key(release=release), T0): Cell({"requests": 2}, stages={"itl": Histogram.of(values)})
            for release, values in gaps.items()
        }
    )
    columns = choose_columns(T0, NOW, now=NOW, step_s=300)

    picture = load_difference(WANTED, "itl", columns, base=1, release=2, now=NOW)

    assert not any(any(row) for row in picture.significant)


def test_regions_are_ordered_by_requests_and_the_unknown_are_told() -> None:
    add_cells(
        {
            (make_key(), T0): make_cell([0.1] * 10),
            (SeriesKey(model="smollm2", region="eu"), T0): make_cell([0.1] * 2),
            (SeriesKey(model="smollm2", region="us"), T0): make_cell([0.4] * 5),
        }
    )
    columns = choose_columns(T0, NOW, now=NOW, step_s=300)

    picture = load_regions("smollm2", "ttft", columns, quantile=0.95, now=NOW)

    assert (picture.regions, picture.requests) == (("us", "eu"), (5, 2))
    assert picture.seconds[0][0] == pytest.approx(0.4, rel=0.01)
    assert picture.enough[0][0] is False
    assert picture.unknown_requests == 3


def test_many_regions_are_shown_as_the_largest_and_the_rest() -> None:
    cells = {
        (SeriesKey(model="smollm2", region=f"z{n:02}"), T0): make_cell([0.1] * (40 - n)) for n in range(30)
    }
    add_cells(cells)
    columns = choose_columns(T0, NOW, now=NOW, step_s=300)

    picture = load_regions("smollm2", "ttft", columns, quantile=0.95, now=NOW)

    assert (len(picture.regions), picture.regions[0], picture.regions[-1]) == (20, "z00", "…")
    assert sum(picture.requests) == sum(map(sum, picture.samples)) == sum(40 - n for n in range(30))


def test_a_failure_of_the_database_is_one_of_djangos_own() -> None:
    with pytest.raises(ProgrammingError):
        fetch_binary("SELECT nothing FROM nowhere", [])


@pytest.mark.parametrize("content", [b"\x02", b"\x07" + bytes(8), Histogram.of([1.0]).to_bytes()[:-1]])
def test_bytes_that_no_histogram_wrote_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="histogram"):
        sum_histograms([content], [0], 1)


def test_a_bucket_beyond_the_last_one_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the last"):
        sum_histograms([Histogram({LAST_BUCKET + 1: 1}).to_bytes()], [0], 1)
