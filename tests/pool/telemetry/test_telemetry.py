import json
import os
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from pool.domain.histogram import Histogram
from pool.models import StreamPosition, TrafficCell
from pool.queries.traffic import list_recent_traffic
from pool.services.routing import create_routing_state
from pool.telemetry.cells import fold
from pool.telemetry.ingest import Ingester
from pool.telemetry.store import add_cells, read_position

AT = 1_795_982_405.0
STREAM = "sluice:i-test:facts"


def make_fact(**values: Any) -> dict[str, Any]:
    return {
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


def test_facts_of_one_series_and_ten_seconds_share_a_cell() -> None:
    cells, unreadable = fold([make_fact(), make_fact(at=AT + 4), make_fact(at=AT + 9, release=2)])

    assert unreadable == 0
    assert sorted(cell.requests for cell in cells.values()) == [1, 2]
    assert {series.at.second % 10 for series in cells} == {0}


def test_errors_are_ours_and_a_callers_mistake_is_not() -> None:
    cells, _ = fold([make_fact(status=502), make_fact(status=400), make_fact(outcome="interrupted")])

    (cell,) = cells.values()
    assert (cell.requests, cell.errors, cell.interrupted) == (3, 2, 1)


def test_a_fact_without_a_first_token_is_counted_and_gives_no_time_fc29() -> None:
    (cell,) = fold([make_fact(ttft_s=None)])[0].values()

    assert (cell.requests, cell.ttft.count) == (1, 0)


@pytest.mark.parametrize("bad", [{"at": "soon"}, {"model": None, "at": None}, {"ttft_s": float("nan")}])
def test_what_cannot_be_read_is_counted_and_dropped(bad: dict[str, Any]) -> None:
    cells, unreadable = fold([make_fact(**bad)])

    assert (cells, unreadable) == ({}, 1)


@pytest.mark.django_db
def test_cells_add_up_and_the_position_moves_with_them() -> None:
    cells, _ = fold([make_fact(), make_fact(ttft_s=0.4)])
    now = datetime.now(UTC)

    add_cells(cells, stream=STREAM, last_id="5-0", unreadable=1, now=now)
    add_cells(cells, stream=STREAM, last_id="6-0", unreadable=0, now=now)

    row = TrafficCell.objects.get()
    assert (row.requests, Histogram.from_bytes(bytes(row.ttft)).count) == (4, 4)
    assert read_position(STREAM) == "6-0"
    assert StreamPosition.objects.get().dropped == 1


@pytest.mark.django_db(transaction=True)
def test_the_stream_is_read_once_and_from_where_it_stopped() -> None:
    create_routing_state("i-test")
    client = redis.Redis.from_url(os.environ["SLUICE_REDIS_URL"])
    client.delete(STREAM)
    client.xadd(STREAM, {"b": json.dumps([make_fact(), make_fact()])})
    client.xadd(STREAM, {"b": "no json"})

    counts = [Ingester(os.environ["SLUICE_REDIS_URL"]).run_once(block_ms=10) for _ in range(2)]

    assert counts == [2, 0]
    assert TrafficCell.objects.get().requests == 2
    client.delete(STREAM)


@pytest.mark.django_db
def test_quantiles_are_taken_after_merging_fc30() -> None:
    now = datetime.fromtimestamp(AT + 20, tz=UTC)
    facts = [make_fact(ttft_s=0.05, replica="r1") for _ in range(980)]
    facts += [make_fact(ttft_s=5.0, replica="r2") for _ in range(20)]
    add_cells(fold(facts)[0], stream=STREAM, last_id="1-0", unreadable=0, now=now)

    (view,) = list_recent_traffic("chatty", now=now)

    assert view.samples == 1000
    assert view.ttft_p99_s == pytest.approx(5.0, rel=0.01)
    assert view.ttft_p50_s == pytest.approx(0.05, rel=0.01)
    assert view.error_ratio == 0
