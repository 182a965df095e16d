"""What a node's worker passes on of its engines and devices."""

from __future__ import annotations

import base64
import json
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from django.conf import settings

from pool.gateway.gauges import Gauges, read_gauges
from pool.models import RoutingState
from pool.ports import DeviceFacts
from pool.services.delivery import connect
from tests.workers.engine_rings import make_engine, make_finished, make_ring, make_step, put_map, put_step
from workers.device_meter import DeviceMeter
from workers.plugin.sluice_engine import ring
from workers.plugin.sluice_engine.ring import SEGMENTS_WISH
from workers.replica_trace import WatchedEngine
from workers.sample_board import SampleBoard
from workers.sample_publisher import SamplePublisher

pytestmark = pytest.mark.usefixtures("routing_state")
HOST = DeviceFacts("cpu", "cpu", 0, "cpu", 1000, 400, 600)


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    client = connect(settings.REDIS_URL)
    yield client
    client.flushdb()
    client.close()


def make_publisher(*engines: WatchedEngine, url: str = "") -> SamplePublisher:
    meter = DeviceMeter(None, our_pids=frozenset, read_host=lambda: HOST)
    return SamplePublisher(
        node="n1",
        board=SampleBoard(url or settings.REDIS_URL),
        meter=meter,
        list_engines=lambda: engines,
        list_processes=lambda: {"web": {"rss_bytes": 5e7}},
    )


def key_of(name: str) -> str:
    return f"sluice:{RoutingState.objects.get().installation}:{name}"


def read_samples(client: redis.Redis) -> list[dict[str, Any]]:
    entries = cast(list[tuple[bytes, dict[bytes, bytes]]], client.xrange(key_of("samples")))
    return [json.loads(fields[b"b"]) for _, fields in entries]


def read_state(client: redis.Redis, name: str) -> dict[str, Any]:
    content = cast(bytes, client.hget(key_of("replicas"), name))
    return cast(dict[str, Any], json.loads(content))


def test_one_sample_tells_of_all_engines(client: redis.Redis, tmp_path: Path) -> None:
    engines = [make_engine(tmp_path, "r1"), make_engine(tmp_path, "r2")]
    writer = make_ring(engines[0])
    publisher = make_publisher(*engines)
    publisher.run_once()
    put_step(writer, make_step())
    writer.put_finished(make_finished("chatcmpl-req-7-0123abcd"))

    publisher.run_once()

    sample = read_samples(client)[-1]
    first, second = sample["replicas"]
    assert (first["id"], first["model"], first["release"], first["lane"]) == ("r1", "chat", 3, "short")
    assert first["gauges"]["running"] == [2, 2, 2, 1]
    assert list(first["steps"]) == ["decode", "scheduler_queue"]
    assert (second["gauges"], second["steps"]) == ({}, {})
    assert (first["missing"], second["missing"] != "") == ("", True)
    assert sample["requests"] == [
        {
            "id": "req-7", "replica": "r1", "queue_s": 0.2, "prefill_s": 0.05, "decode_s": 0.4, "preemptions": 1,
            "cached_tokens": 64,
        }
    ]  # fmt: skip


def test_the_newest_state_stands_beside_and_goes_with_its_engine(client: redis.Redis, tmp_path: Path) -> None:
    engines = [make_engine(tmp_path, "r1")]
    put_step(make_ring(engines[0]), make_step())
    publisher = make_publisher()
    publisher.list_engines = lambda: engines
    publisher.run_once()
    publisher.run_once()

    state = read_state(client, "r1.1")

    assert (state["step"]["running"], state["missing"]) == (2, "")
    assert abs(state["at_ms"] / 1000 - time.time()) < 5
    engines.clear()
    publisher.run_once()
    assert client.hlen(key_of("replicas")) == 0


def test_a_block_map_is_sent_only_while_somebody_watches(client: redis.Redis, tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    writer = make_ring(engine)
    put_step(writer, make_step())
    put_map(writer, used=5, tail_tokens=7)
    publisher = make_publisher(engine)
    publisher.run_once()
    before = client.get(key_of("blocks:r1"))
    client.set(key_of("watch:r1"), "1", ex=5)

    publisher.run_once()

    found = json.loads(cast(bytes, client.get(key_of("blocks:r1"))))
    assert before is None
    assert 0 < client.ttl(key_of("blocks:r1")) <= 5
    assert zlib.decompress(base64.b64decode(found["states"]))[:8] == bytes([0, 3, 3, 3, 3, 3, 2, 2])
    assert zlib.decompress(base64.b64decode(found["owners"]))[:4] == b"\xff\xff\x00\x00"
    assert found["requests"] == [{"id": "req-1", "blocks": 5, "tokens": 73, "tail_tokens": 7}]
    assert (found["block_size"], found["runs_of_free"]) == (16, {"95": 1})


def test_a_wish_for_the_allocators_segments_reaches_the_engine(client: redis.Redis, tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    writer = make_ring(engine)
    put_step(writer, make_step())
    publisher = make_publisher(engine)
    client.set(key_of("segments-wish:r1"), "7", ex=5)
    publisher.run_once()
    before = writer.words[SEGMENTS_WISH]
    client.set(key_of("watch:r1"), "1", ex=5)

    publisher.run_once()
    publisher.run_once()

    assert (before, writer.words[SEGMENTS_WISH]) == (0, 1)


def test_gateways_are_told_the_load_of_each_look(client: redis.Redis, tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    put_step(make_ring(engine), make_step())
    publisher = make_publisher(engine, make_engine(tmp_path, "r2"))
    publisher.run_once()
    publisher.run_once()

    told = cast(dict[bytes, bytes], client.hgetall(key_of("gauges")))

    found = read_gauges(b"r1.1", told[b"r1.1"], time.time() * 1000)
    assert found is not None
    assert found[:3] == ("r1", 1, Gauges(0.4, 2, 1))
    assert found[3] < 5
    assert list(told) == [b"r1.1"]


def test_while_a_step_lasts_its_load_is_as_old_as_the_step(client: redis.Redis, tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    writer = make_ring(engine)
    put_step(writer, make_step())
    writer.words[ring.IN_STEP_NS] = time.monotonic_ns() - 30 * 10**9
    publisher = make_publisher(engine)
    publisher.run_once()
    publisher.run_once()

    content = cast(bytes, client.hget(key_of("gauges"), "r1.1"))

    assert 25 < time.time() - json.loads(content)["at_ms"] / 1000 < 40


def test_only_an_engine_that_makes_steps_has_a_live_load(client: redis.Redis, tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    writer = make_ring(engine)
    publisher = make_publisher(engine)
    publisher.run_once()
    before = publisher.find_live_load(engine.spec)
    put_step(writer, make_step(running=3))
    publisher.run_once()

    load = publisher.find_live_load(engine.spec)
    publisher.clock = lambda: time.monotonic() + 3

    assert before is None
    assert load is not None
    assert (load.running, load.waiting, load.kv_usage_ratio, load.generation_tokens) == (3, 1, 0.4, None)
    assert publisher.find_live_load(engine.spec) is None
    assert publisher.has_ring(engine.spec)


def test_processes_are_told_every_five_seconds_fc68(client: redis.Redis) -> None:
    publisher = make_publisher()
    for _ in range(11):
        publisher.run_once()

    told = [sample["processes"] for sample in read_samples(client)]

    assert [len(processes) for processes in told] == [1, *[0] * 9, 1]
    assert told[0][0]["gauges"] == {"rss_bytes": [5e7, 5e7, 5e7, 1]}


def test_without_redis_samples_are_dropped_and_counted_and_nobody_waits(tmp_path: Path) -> None:
    publisher = make_publisher(make_engine(tmp_path), url="unix:///tmp/no-such-redis.sock?db=0")

    for _ in range(3):
        publisher.run_once()

    assert (publisher.board.sent, publisher.board.dropped) == (0, 3)


def test_a_redis_that_hangs_is_not_asked_at_each_look_and_the_counts_go_on_fc21(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    writer = make_ring(engine)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        publisher = make_publisher(engine, url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        publisher.run_once()
        for _ in range(3):
            put_step(writer, make_step())
            publisher.run_once()

        # The first look waited for it, and those of the next two seconds do not.
        assert publisher.board._next_s > time.monotonic() - 2
    assert publisher.board.dropped == 4
    totals = publisher.totals.find("r1")
    assert totals is not None
    assert sum(totals.steps["decode"].counts) == 3


def test_the_stream_is_bounded(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.sample_board.MOST_ENTRIES", 100)
    publisher = make_publisher()

    for _ in range(400):
        publisher.run_once()

    # Redis cuts whole nodes of its stream.
    assert client.xlen(key_of("samples")) <= 200


def test_the_stream_is_bounded_by_its_bytes_too(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.sample_board.MOST_BYTES", 1 << 20)
    board = SampleBoard(settings.REDIS_URL)
    large = {"node": "n1", "replicas": ["x" * 50_000]}

    for _ in range(100):
        assert board.send(large, {}, ()) is not None

    stream = key_of("samples")
    assert client.xlen(stream) * 50_000 <= 2 << 20
    assert cast(int, client.memory_usage(stream)) < 4 << 20
    assert board.send({"node": "n1", "replicas": []}, {}, ()) is not None
    assert client.xlen(stream) > 1


def test_requests_beyond_the_bound_are_counted(
    client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.sample_publisher.MOST_REQUESTS", 2)
    engine = make_engine(tmp_path)
    writer = make_ring(engine)
    publisher = make_publisher(engine)
    publisher.run_once()
    for number in range(5):
        writer.put_finished(make_finished(f"chatcmpl-req-{number}-0123abcd"))

    publisher.run_once()

    assert len(read_samples(client)[-1]["requests"]) == 2
    assert publisher.requests_dropped == 3
