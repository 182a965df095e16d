"""Streams to tables over real Redis and PostgreSQL: nothing twice, nothing lost that the streams still hold."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import OperationalError, transaction

from pool.domain.cells import Cell
from pool.domain.gauges import GaugeCell
from pool.models import RESOLUTIONS, RequestRecord, StreamPosition
from pool.queries.cells import CellFilter, find_series, list_cells, sum_cells
from pool.services.routing import create_routing_state
from pool.telemetry.ingest import Ingester
from pool.telemetry.rows import GAUGE_CELLS, datetime_of
from pool.telemetry.store import Overtaken, Store
from pool.telemetry.streams import trim

AT_S = 1_795_982_405
# Channels are shared by all databases of a server, and so by tests that run at the same time.
INSTALLATION = f"i-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
PREFIX = f"sluice:{INSTALLATION}"
REPLICA = {"id": "r1", "model": "chatty", "release": 1, "lane": "short", "age_s": 2.0}

pytestmark = pytest.mark.django_db(transaction=True)


class Bench:
    """The streams, a clock, and processes that read them."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.now_s = client, AT_S + 2.0
        self._ids = iter(range(1, 1_000_000))

    def start(self) -> Ingester:
        return Ingester(os.environ["SLUICE_REDIS_URL"], clock=lambda: self.now_s)

    def send_facts(self, *facts: dict[str, Any]) -> None:
        self._add("facts", json.dumps(facts))

    def send_sample(self, **parts: Any) -> None:
        self._add("samples", json.dumps({"node": "n1", **parts}))

    def send_raw(self, stream: str, text: str) -> None:
        self._add(stream, text)

    def fact(self, **values: Any) -> dict[str, Any]:
        return {
            "request_id": f"req-{next(self._ids)}", "at": AT_S, "model": "chatty", "release": 1, "replica": "r1",
            "lane": "short", "tier": "standard", "status": 200, "outcome": "ok", "ttft_s": 0.2, "e2e_s": 1.0,
            "output_tokens": 10,
        } | values  # fmt: skip

    def _add(self, stream: str, text: str) -> None:
        self.client.xadd(f"{PREFIX}:{stream}", {"b": text}, id=f"{int(self.now_s * 1000)}-{next(self._ids)}")


@pytest.fixture
def bench() -> Iterator[Bench]:
    create_routing_state(INSTALLATION)
    client = redis.Redis.from_url(os.environ["SLUICE_REDIS_URL"])
    client.delete(f"{PREFIX}:facts", f"{PREFIX}:samples")
    yield Bench(client)
    client.delete(f"{PREFIX}:facts", f"{PREFIX}:samples")


def stored(resolution_s: int) -> Cell:
    """All that the tables hold of the model."""
    return sum_cells(
        cell
        for _, _, cell in list_cells(
            find_series(CellFilter(model="chatty")),
            start=datetime_of(AT_S) - timedelta(hours=3),
            end=datetime_of(AT_S) + timedelta(hours=3),
            resolution_s=resolution_s,
        )
    )


def stored_requests() -> list[int]:
    return [stored(resolution_s).counts.get("requests", 0) for resolution_s in RESOLUTIONS]


def stored_gauges(resolution_s: int) -> list[tuple[int, GaugeCell]]:
    rows = RESOLUTIONS[resolution_s][1].objects.select_related("subject").order_by("at")
    return [
        (
            int(row.at.timestamp()),
            GAUGE_CELLS.unpack(row.subject, [getattr(row, name) for name in GAUGE_CELLS.columns]),
        )
        for row in rows
    ]


def test_two_batches_of_one_second_add_up(bench: Bench) -> None:
    ingester = bench.start()
    counts = []
    for _ in range(2):
        bench.send_facts(bench.fact(), bench.fact(ttft_s=0.4))
        counts.append(ingester.run_once())
    bench.now_s += 400
    ingester.run_once()

    assert counts == [2, 2]
    assert stored_requests() == [4, 4, 4]
    assert RequestRecord.objects.count() == 4
    assert stored(300).stages["ttft"].count == 4


def test_a_process_that_is_killed_anywhere_counts_nothing_twice(bench: Bench) -> None:
    for number in range(6):
        bench.send_facts(bench.fact(), bench.fact(at=AT_S - 20 * number))
        bench.start().run_once()  # a new process each time, and none of them closes its cells
        bench.now_s += 1
    bench.now_s += 400
    bench.start().run_once()

    assert stored_requests() == [12, 12, 12]


def test_a_transaction_that_is_rolled_back_is_written_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingester = bench.start()
    bench.send_facts(bench.fact())
    write = Store._write

    def fail(self: Store, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            write(self, *args, **options)
            raise OperationalError("the connection is gone")

    monkeypatch.setattr(Store, "_write", fail)
    with pytest.raises(OperationalError):
        ingester.run_once()
    monkeypatch.setattr(Store, "_write", write)
    rolled_back = stored_requests()
    bench.start().run_once()
    bench.now_s += 400
    bench.start().run_once()

    assert rolled_back == [0, 0, 0]
    assert stored_requests() == [1, 1, 1]


def test_two_processes_at_once_count_nothing_twice(bench: Bench) -> None:
    one, other = bench.start(), bench.start()
    bench.send_facts(bench.fact())
    one.run_once()
    bench.send_facts(bench.fact())
    other.run_once()
    bench.send_facts(bench.fact())
    with pytest.raises(Overtaken):
        one.run_once()
    one.run_once()
    bench.now_s += 400
    one.run_once()

    assert stored_requests() == [3, 3, 3]


def test_late_facts_land_in_their_own_cells(bench: Bench) -> None:
    ingester = bench.start()
    bench.send_facts(bench.fact())
    ingester.run_once()
    bench.now_s += 1000
    ingester.run_once()
    bench.send_facts(bench.fact(), bench.fact(at=AT_S - 4000))
    ingester.run_once()

    assert stored_requests() == [3, 3, 3]
    assert sorted(
        int(at.timestamp()) - AT_S
        for _, at, _ in list_cells(
            find_series(CellFilter(model="chatty")),
            start=datetime_of(AT_S - 9000),
            end=datetime_of(AT_S + 9000),
            resolution_s=1,
        )
    ) == [-3999, 1]


def test_what_cannot_be_read_is_counted_and_passed_over(bench: Bench) -> None:
    bench.send_raw("facts", "no json")
    bench.send_facts(bench.fact(), {"model": "chatty"})
    bench.send_raw("samples", "[1]")
    bench.send_sample(replicas=[{"gauges": {}}, REPLICA | {"gauges": {"running": ["a", 1, 2, 3]}}])

    bench.start().run_once()

    dropped = dict(StreamPosition.objects.filter(dropped__gt=0).values_list("name", "dropped"))
    assert stored_requests()[0] == 1
    assert dropped == {f"{PREFIX}:facts": 2, f"{PREFIX}:samples": 3}


def test_a_samples_time_is_its_receipt_minus_its_age(bench: Bench) -> None:
    gauges = {"running": [1, 9, 5, 3], "of a later version": [1, 1, 1, 1]}
    bench.send_sample(
        at=1.0,
        replicas=[
            REPLICA | {"gauges": gauges, "counters": {"steps": 7}, "steps": {"decode": [0.5, {"40": 5}]}}
        ],
        devices=[{"uuid": "GPU-1", "gauges": {"power_w": [80, 170, 90, 2]}}],
        processes=[{"name": "web", "gauges": {"rss_bytes": [10, 10, 10, 1]}}],
    )

    bench.start().run_once()

    by_kind = {}
    for row in RESOLUTIONS[1][1].objects.select_related("subject"):
        values = [getattr(row, name) for name in GAUGE_CELLS.columns]
        by_kind[row.subject.kind] = (int(row.at.timestamp()), GAUGE_CELLS.unpack(row.subject, values))
    at_s, replica = by_kind["replica"]
    assert (at_s, by_kind["device"][0]) == (AT_S, AT_S + 2)
    assert (replica.gauges["running"].mean, set(replica.gauges)) == (3.0, {"running"})
    assert (replica.counters, replica.steps["decode"].count) == ({"steps": 7.0}, 5)
    assert by_kind["device"][1].gauges["power_w"].high == 90
    assert by_kind["process"][1].gauges["rss_bytes"].low == 10


def test_gauges_of_a_second_add_up_over_batches_and_restarts(bench: Bench) -> None:
    for value in (2, 6):
        bench.send_sample(replicas=[REPLICA | {"gauges": {"running": [value, value, value, 1]}}])
        bench.start().run_once()
    bench.now_s += 400
    bench.start().run_once()

    for resolution_s in RESOLUTIONS:
        ((_, cell),) = stored_gauges(resolution_s)
        running = cell.gauges["running"]
        assert (running.low, running.total, running.high, running.count) == (2, 8, 6, 2)


def test_the_stream_of_another_redis_is_read_from_its_start(bench: Bench) -> None:
    ingester = bench.start()
    bench.send_facts(bench.fact())
    ingester.run_once()
    bench.client.delete(f"{PREFIX}:facts")
    bench.client.xadd(
        f"{PREFIX}:facts", {"b": json.dumps([bench.fact()])}, id="5-1"
    )  # its clock was set back
    ingester._checked_s = 0.0
    ingester.run_once()
    ingester.run_once()

    assert stored_requests()[0] == 2


def test_what_is_stored_and_old_is_cut_off_to_the_last_entry(bench: Bench) -> None:
    """Without room Redis takes no further one, which would have let it go."""
    stream = f"{PREFIX}:facts"
    for number in (1, 2):
        bench.client.xadd(stream, {"b": "x" * 100_000}, id=f"1000-{number}")

    trim(bench.client, stream, stored="1000-1", now_s=time.time())
    assert bench.client.xlen(stream) == 1
    trim(bench.client, stream, stored="1000-2", now_s=time.time())
    assert bench.client.xlen(stream) == 0
    trim(bench.client, stream, stored="0", now_s=time.time())


def test_entries_that_were_cut_off_unread_are_noticed(bench: Bench) -> None:
    ingester = bench.start()
    bench.send_facts(bench.fact())
    ingester.run_once()
    for _ in range(3):
        bench.send_facts(bench.fact())
    bench.client.xtrim(f"{PREFIX}:facts", maxlen=1, approximate=False)
    ingester._checked_s = 0.0
    ingester.run_once()

    assert (ingester.counts.lost_entries, stored_requests()[0]) == (2, 2)
    assert StreamPosition.objects.get(pk=f"{PREFIX}:facts").dropped == 2
