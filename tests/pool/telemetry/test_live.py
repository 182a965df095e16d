"""What web processes get, and engines' times that join stored requests, over real Redis and PostgreSQL."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
import redis
from django.db import connection

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.domain.histogram import Histogram
from pool.models import RequestRecord
from pool.telemetry import publishing, streams
from pool.telemetry.ingest import Ingester
from pool.telemetry.memory import MOST_RECORDS, Memory
from pool.telemetry.publishing import write_messages
from tests.pool.telemetry.test_ingest import AT_S, PREFIX, REPLICA, Bench, bench, stored

__all__ = ["bench"]
TIMES = {"queue_s": 0.1, "prefill_s": 0.2, "decode_s": 0.5, "preemptions": 2}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def listener(bench: Bench) -> Any:
    client: Any = bench.client
    found = client.pubsub(ignore_subscribe_messages=True)
    found.subscribe(f"{PREFIX}:open")
    found.get_message(timeout=5)
    return found


def receive(listener: Any) -> list[dict[str, Any]]:
    messages = []
    while (message := listener.get_message(timeout=0.2)) is not None:
        messages.append(json.loads(message["data"]))
    return messages


def test_open_cells_are_published_whole(bench: Bench, listener: Any) -> None:
    ingester = bench.start()
    for ttft_s in (0.2, 0.4):
        bench.send_facts(bench.fact(ttft_s=ttft_s, region="eu"))
        bench.send_sample(
            replicas=[REPLICA | {"gauges": {"running": [1, 1, 1, 1]}, "counters": {"steps": 3}}]
        )
        ingester.run_once()

    first, second = receive(listener)

    at_s, key, content = next(cell for cell in second["cells"] if cell[1][7] == "")
    assert (first["seq"], second["seq"], first["epoch"] == second["epoch"]) == (1, 2, True)
    assert (at_s, key) == (AT_S + 1, ["chatty", 1, "r1", "short", "standard", "", False, ""])
    assert (content["counts"]["requests"], content["outcomes"]) == (2, {"ok": 2})
    assert content["stages"]["ttft"][0] == pytest.approx(0.6)
    assert sum(count for _, count in content["stages"]["ttft"][1]) == 2
    assert second["gauges"] == [
        [
            AT_S,
            ["replica", "r1", "n1", "chatty", 1, "short"],
            {"gauges": {"running": [1, 2, 1, 2]}, "counters": {"steps": 6}, "steps": {}},
        ]
    ]


def test_a_new_process_publishes_the_whole_second_too(bench: Bench, listener: Any) -> None:
    for _ in range(2):
        bench.send_facts(bench.fact())
        bench.start().run_once()

    messages = receive(listener)

    assert [message["cells"][0][2]["counts"]["requests"] for message in messages] == [1, 2]
    assert messages[0]["epoch"] != messages[1]["epoch"]


def test_nothing_is_written_for_nobody(bench: Bench) -> None:
    ingester = bench.start()
    bench.send_facts(bench.fact())
    ingester.run_once()

    assert ingester.counts.messages == 0


def test_a_long_message_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MOST_CELLS", 2)
    cells = [(SeriesKey("chatty", release=n), AT_S, Cell(counts={"requests": n})) for n in range(3)]
    gauges = [(Subject("device", "GPU-1"), AT_S, GaugeCell(steps={"decode": Histogram.of([0.1])}))]

    parts = [orjson.loads(part) for part in write_messages("e", 7, cells, gauges)]

    assert [(part["seq"], len(part["cells"]), len(part["gauges"])) for part in parts] == [
        (7, 2, 1),
        (8, 1, 0),
    ]


@pytest.mark.parametrize("order", ["fact first", "engine first", "fact stored first"])
def test_an_engines_times_join_the_fact_in_either_order(bench: Bench, order: str) -> None:
    ingester, fact = bench.start(), bench.fact()
    engine = [{"id": fact["request_id"]} | TIMES, {"id": "of nobody"} | TIMES]
    if order == "engine first":
        bench.send_sample(requests=engine)
        ingester.run_once()
        bench.send_facts(fact)
    else:
        bench.send_facts(fact)
        if order == "fact stored first":
            ingester.run_once()
        bench.send_sample(requests=engine)
    ingester.run_once()
    bench.now_s += 400
    ingester.run_once()

    for resolution_s in (1, 10, 300):
        cell = stored(resolution_s)
        assert (cell.counts["requests"], cell.counts["joined"]) == (1, 1)
        assert (cell.sums["engine_decode_s"], cell.sums["joined_e2e_s"]) == (0.5, 1.0)
    record = RequestRecord.objects.get()
    assert (record.engine_queue_s, record.engine_prefill_s, record.preemptions) == (0.1, 0.2, 2)


@pytest.mark.parametrize("order", ["fact first", "engine first"])
def test_a_restart_between_both_halves_loses_neither(bench: Bench, order: str) -> None:
    fact = bench.fact()
    sends: list[Callable[[], None]] = [
        lambda: bench.send_facts(fact),
        lambda: bench.send_sample(requests=[{"id": fact["request_id"]} | TIMES]),
    ]
    for send in sends if order == "fact first" else reversed(sends):
        send()
        bench.start().run_once()
    bench.start().run_once()

    assert (stored(1).counts["joined"], RequestRecord.objects.get().engine_decode_s) == (1, 0.5)


@contextmanager
def running(ingester: Ingester) -> Iterator[None]:
    """The process with its threads."""
    thread = threading.Thread(target=ingester.run)
    thread.start()
    try:
        yield
    finally:
        ingester.stop()
        thread.join(20)
    assert not thread.is_alive()


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline_s, "it did not happen"
        threading.Event().wait(0.02)


def test_the_process_reads_stores_and_ends(bench: Bench, listener: Any) -> None:
    bench.now_s = time.time()
    messages: list[Any] = []
    with running(bench.start()):
        bench.send_facts(bench.fact(at=int(bench.now_s) - 1))

        def received() -> bool:
            messages.extend(receive(listener))
            return bool(messages)

        wait_for(received)

    assert messages[0]["cells"][0][2]["counts"]["requests"] == 1
    assert RequestRecord.objects.count() == 1


def test_the_process_goes_on_when_its_connection_was_cut(bench: Bench) -> None:
    bench.now_s = time.time()
    with running(ingester := bench.start()):
        bench.send_facts(bench.fact(at=int(bench.now_s) - 1))
        wait_for(lambda: RequestRecord.objects.count() == 1)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        bench.send_facts(bench.fact(at=int(bench.now_s) - 1))
        wait_for(lambda: RequestRecord.objects.count() == 2)

    assert ingester.counts.failed_batches >= 1
    assert ingester.counts.resets == 0


def test_the_process_waits_for_redis_and_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.now_s = time.time()
    monkeypatch.setattr("pool.telemetry.ingest.RETRY_S", 0.01)
    read, failures = streams.read, iter(range(3))

    def fail_at_first(*args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise redis.ConnectionError("away")
        return read(*args, **options)

    monkeypatch.setattr(streams, "read", fail_at_first)
    with running(bench.start()):
        bench.send_facts(bench.fact(at=int(bench.now_s) - 1))
        wait_for(lambda: RequestRecord.objects.count() == 1)

    assert next(failures, None) is None


def test_what_the_database_does_not_take_stays_in_the_stream(bench: Bench) -> None:
    """Memory is bounded: from MOST_RECORDS on nothing more is read."""
    memory = Memory.empty(bench.now_s)
    facts = [bench.fact() for _ in range(100)]
    for number in range(MOST_RECORDS // 100):
        body = orjson.dumps([fact | {"request_id": f"{number}-{n}"} for n, fact in enumerate(facts)])
        before = memory.is_full
        memory.fold_facts(f"{number + 1}-0", body, now_s=bench.now_s)

    assert (before, memory.is_full) == (False, True)
