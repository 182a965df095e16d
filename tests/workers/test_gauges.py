"""An engine's load on its way to the gateways."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import redis
from django.conf import settings

from pool.gateway.gauges import Gauges, read_gauges
from pool.models import RoutingState
from pool.ports import EngineLoad
from pool.services.delivery import connect
from workers.gauges import GaugeBoard

LOAD = EngineLoad(2, None, 0.25, 100.0, 40.0, 7.0, 90.0, 30.0)


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    client = connect(settings.REDIS_URL)
    yield client
    client.flushdb()
    client.close()


@pytest.mark.usefixtures("routing_state")
def test_gateways_read_what_the_worker_wrote(client: redis.Redis) -> None:
    board = GaugeBoard(settings.REDIS_URL)

    assert board.publish("r1", 3, LOAD)

    key = f"sluice:{RoutingState.objects.get().installation}:gauges"
    content = client.hget(key, "r1.3")
    assert isinstance(content, bytes)
    assert "waiting" not in json.loads(content)
    found = read_gauges(b"r1.3", content, time.time() * 1000)
    assert found is not None
    assert found[:3] == ("r1", 3, Gauges(0.25, 2, None, 90.0, 30.0))
    assert found[3] < 5
    assert client.ttl(key) > 60


@pytest.mark.usefixtures("db")
def test_before_there_is_routing_nobody_is_told() -> None:
    assert not GaugeBoard(settings.REDIS_URL).publish("r1", 1, LOAD)


@pytest.mark.usefixtures("routing_state")
def test_without_redis_the_watcher_does_not_wait_again_and_again() -> None:
    board = GaugeBoard("unix:///tmp/no-such-redis.sock?db=0")

    assert not board.publish("r1", 1, LOAD)
    assert board._next_s > time.monotonic()
    assert not board.publish("r1", 1, LOAD)
