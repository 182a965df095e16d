from __future__ import annotations

import pytest
import redis
from django.conf import settings
from prometheus_client.parser import text_string_to_metric_families

from pool.domain.prometheus import Page
from pool.reconcilers.loop import Loop
from pool.services.delivery import connect
from tests.pool.services.world import make_replica, make_world
from workers.control_metrics import fill_control

pytestmark = pytest.mark.django_db(transaction=True)  # A scrape closes its connection.


def read(client: redis.Redis, *loops: Loop) -> dict[str, dict[tuple[str, ...], float]]:
    page = Page()
    fill_control(page, loops, client)
    return {
        family.name: {tuple(one.labels.values()): one.value for one in family.samples}
        for family in text_string_to_metric_families(page.render())
    }


def test_loops_queues_streams_and_replicas_are_told() -> None:
    make_replica(make_world())
    loop = Loop("replicas", lambda now: {}, leased=False)
    loop.run_once()
    client = connect(settings.REDIS_URL)
    try:
        client.rpush("node.node-a", "task")
        client.xadd("sluice:i-test:facts", {"b": "[]"})

        found = read(client, loop, Loop("nodes", lambda now: {}))
    finally:
        client.flushdb()
        client.close()

    assert found["sluice_loop_passes"] == {("replicas",): 1, ("nodes",): 0}
    assert set(found["sluice_loop_pass_seconds"]) == {("replicas",)}
    assert found["sluice_queue_depth"] == {("control",): 0, ("node.node-a",): 1}
    assert found["sluice_stream_entries"][("facts",)] == 1
    assert sum(found["sluice_replicas"].values()) == 1


def test_without_redis_the_loops_are_told_and_no_queue_is_empty() -> None:
    found = read(connect("unix:///tmp/no-such-redis.sock?db=0"), Loop("nodes", lambda now: {}))

    assert found["sluice_loop_failures"] == {("nodes",): 0}
    assert "sluice_queue_depth" not in found
