from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import RequestRecord
from pool.queries import requests as requests_module
from pool.queries.cells import CellFilter
from pool.queries.requests import STAGES_SQL, Brush, list_requests
from pool.telemetry.store import add_cells, add_requests
from tests.factories import T0

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
NOW = T0 + timedelta(minutes=5)
WANTED = CellFilter(model="smollm2")
SLOW = Brush("ttft", T0, NOW, 1.0, None, T0, NOW)
_ids = iter(range(1_000_000))


def make_record(**values: Any) -> RequestRecord:
    fields = {
        "request_id": f"req-{next(_ids)}",
        "at": T0 + SECOND,
        "model": "smollm2",
        "lane": "short",
        "release": 1,
        "replica": "r1",
        "node": "node-a",
        "key": "aaaaaaaaaaaa",
        "tier": "standard",
        "status": 200,
        "outcome": "ok",
        "ttft_s": 0.2,
        "e2e_s": 2.0,
        "output_tokens": 10,
    }
    return RequestRecord(**(fields | values))


def store(records: Iterable[RequestRecord]) -> None:
    listed = list(records)
    add_requests(listed)
    for record in listed:
        cell = Cell(counts={"requests": 1}, stages={"e2e": Histogram.of([record.e2e_s or 0.0])})
        add_cells({(SeriesKey(record.model, lane=record.lane), record.at): cell})


def test_the_slowest_of_a_cell_come_first_and_no_others() -> None:
    store(make_record(request_id=f"t{ttft_s}", ttft_s=ttft_s) for ttft_s in (0.5, 1.0, 1.1, 3.0, 2.0))
    store([make_record(ttft_s=None), make_record(model="other", ttft_s=2.0)])

    found = list_requests(WANTED, replace(SLOW, high_s=2.0), now=NOW)

    assert [row.request_id for row in found.requests] == ["t2.0", "t1.1"]
    assert (found.chosen, found.rest, found.chosen_share, found.rest_share) == (2, 3, 1.0, 1.0)


def test_a_request_belongs_where_it_ended() -> None:
    store([make_record(at=T0 - 100 * SECOND, e2e_s=100.5, ttft_s=2.0), make_record(e2e_s=400.0, ttft_s=2.0)])

    found = list_requests(WANTED, SLOW, now=NOW)

    assert [row.e2e_s for row in found.requests] == [100.5]


def test_one_that_began_long_before_the_range_is_found() -> None:
    store([make_record(at=T0 - 2000 * SECOND, e2e_s=2001.0, ttft_s=2.0)])
    add_cells({(SeriesKey("smollm2"), T0 + SECOND): Cell(stages={"e2e": Histogram.of([2001.0])})})

    assert len(list_requests(WANTED, SLOW, now=NOW).requests) == 1


@pytest.mark.parametrize("stage", STAGES_SQL)
def test_each_stage_is_compared_by_its_own_time(stage: str) -> None:
    store([make_record(queue_s=7.0, ttft_s=7.0, longest_gap_s=7.0, e2e_s=70.0, output_tokens=10)])
    low_s = 69.0 if stage == "e2e" else 6.9

    found = list_requests(WANTED, replace(SLOW, stage=stage, low_s=low_s), now=NOW)

    assert [row.value_s for row in found.requests] == [pytest.approx(low_s, rel=0.02)]


def test_what_the_slow_ones_share_is_ranked_by_lift() -> None:
    store(make_record(replica=f"r{n % 4}", node=f"node-{n % 2}") for n in range(80))
    store(make_record(replica="r3", node="node-1", ttft_s=2.0, cached_tokens=0) for _ in range(20))

    found = list_requests(WANTED, SLOW, now=NOW)

    lifts = {(lift.attribute, lift.value): lift for lift in found.lifts}
    assert found.lifts[0].lift is None or found.lifts[0].lift >= 4
    assert lifts["replica", "r3"].lift == pytest.approx(4.0)
    assert lifts["replica", "r3"].support == 20
    assert lifts["cached_prefix", "no"].lift is None
    assert ("lane", "short") not in lifts
    assert ("tier", "standard") not in lifts


def test_few_requests_make_no_claim() -> None:
    store(make_record(replica=f"r{n % 4}") for n in range(80))
    store(make_record(replica="r3", ttft_s=2.0) for _ in range(4))

    assert list_requests(WANTED, SLOW, now=NOW).lifts == ()


def test_the_rest_is_the_whole_window() -> None:
    store(make_record(at=T0 + 100 * SECOND) for _ in range(7))
    store([make_record(ttft_s=2.0), make_record(at=T0 + 100 * SECOND, ttft_s=2.0)])

    found = list_requests(WANTED, replace(SLOW, end=T0 + 10 * SECOND), now=NOW)

    assert (found.chosen, found.rest) == (1, 8)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (CellFilter(model="smollm2", lanes=("long",)), 1),
        (CellFilter(model="smollm2", releases=(2,), replicas=("r2",), tiers=("vip",), labels=("mobile",)), 1),
        (CellFilter(model="smollm2", long_prompt=True), 1),
        (CellFilter(model="smollm2", long_prompt=False), 2),
        (CellFilter(model="smollm2", region="eu"), 1),
        (CellFilter(model="smollm2", region=""), 1),
    ],
)
def test_the_filter_is_that_of_the_cells(wanted: CellFilter, count: int) -> None:
    store([make_record(ttft_s=2.0, lane="long", prompt_tokens=9000)])
    store([make_record(ttft_s=2.0, release=2, replica="r2", tier="vip", label="mobile", region="eu")])
    store([make_record(ttft_s=2.0, prompt_tokens=8192)])

    assert len(list_requests(wanted, SLOW, now=NOW).requests) == count


def test_of_many_records_a_sample_is_read_and_the_share_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "LARGEST_SCAN", 10)
    store(make_record(ttft_s=2.0 if n % 2 else 0.1) for n in range(40))

    found = list_requests(WANTED, SLOW, now=NOW, limit=3)

    assert (found.chosen_share, found.rest_share) == (0.25, 0.25)
    assert found.chosen + found.rest <= 40
    assert len(found.requests) == 3


def test_names_are_values_and_never_sql() -> None:
    hostile = "'; DROP TABLE pool_requestrecord; --"
    store([make_record(ttft_s=2.0, label=hostile)])

    found = list_requests(CellFilter(model="smollm2", labels=(hostile,)), SLOW, now=NOW)

    assert [row.label for row in found.requests] == [hostile]
