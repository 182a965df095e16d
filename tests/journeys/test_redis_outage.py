"""Redis hung, killed and restarted: wishes come true, gateways learn of it, queues are served again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
import redis
from django.utils import timezone

from launcher.servers import valkey_url
from pool.queries.gateway_states import FRESH_FOR
from tests.journeys.installation import Installed, patience, send, wait_until
from tests.journeys.streams import Stream

# A click answers within two seconds, whatever Redis does (FC-47).
CLICK_S = 2.0
LONG = "word " * 2500
"""Over the demo model's last edge between lanes."""


@contextmanager
def hung(sluice: Installed, name: str) -> Iterator[None]:
    """Its clients connect and wait: worse than a server that is gone."""
    process = sluice.find(name)
    send(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(process.pid, signal.SIGCONT)


@pytest.fixture
def two_at_the_end_one(sluice: Installed) -> Iterator[Installed]:
    yield sluice
    sluice.post("models/smollm2/releases/1/scale/", {"replicas": 1})
    wait_until(lambda: len(sluice.replicas(phase="ready")) == 1 and len(sluice.engines()) == 1, limit_s=60)


def test_a_scale_up_with_redis_hung_answers_happens_and_is_routed_fc47(two_at_the_end_one: Installed) -> None:
    sluice = two_at_the_end_one
    starts = sluice.count_starts()
    (before,) = [row["id"] for row in sluice.replicas(phase="ready")]

    with hung(sluice, "valkey"):
        began = time.monotonic()
        sluice.post("models/smollm2/releases/1/scale/", {"replicas": 2})
        click_s = time.monotonic() - began
        ready_s = wait_until(
            lambda: len(sluice.replicas(phase="ready")) == 2, limit_s=30, what="a second replica"
        )
        (added,) = {row["id"] for row in sluice.replicas(phase="ready")} - {before}
        # After long requests of an earlier test one of the two is kept for long ones, the other for short ones.
        routed_s = wait_until(
            lambda: added in answered_by(sluice) | {answer_of(sluice, LONG)},
            limit_s=20,
            what="the new one answers",
        )

    print(f"click {click_s:.2f} s, ready after {ready_s:.1f} s, routed {routed_s:.1f} s later")  # noqa: T201
    assert click_s < CLICK_S * patience()
    assert sluice.count_starts() == starts + 1


def test_pages_and_reads_answer_with_redis_hung_fc47(sluice: Installed) -> None:
    with hung(sluice, "valkey"):
        for path in ("status/", "replicas/", "models/smollm2/plan/", "gateways/", "audit/"):
            began = time.monotonic()
            assert sluice.call("GET", path).status == 200, path
            assert time.monotonic() - began < CLICK_S * patience(), path
        began = time.monotonic()
        rollback = sluice.call("POST", "models/smollm2/plans/", {"weights": {"1": 100}, "comment": "again"})
        assert rollback.status == 201
        assert time.monotonic() - began < CLICK_S * patience()
        assert sluice.chat().status == 200


def test_traffic_control_goes_on_to_be_seen_with_redis_hung(sluice: Installed) -> None:
    def seen() -> bool:
        told = sluice.get("models/smollm2/traffic-control/")
        return told["gateways"] == 1 and {one["breaker"]["state"] for one in told["replicas"]} == {"closed"}

    with hung(sluice, "valkey"):
        time.sleep(FRESH_FOR.total_seconds())  # What Redis held before says nothing about now.
        seen_s = wait_until(seen, limit_s=10, what="the gateway's state comes by web")

    print(f"seen after {seen_s:.1f} s")  # noqa: T201


def test_queues_are_served_again_after_quick_restarts_fc46(sluice: Installed) -> None:
    stream = Stream(sluice, tokens=300)
    stream.wait_begun()
    worker, control = sluice.find("worker"), sluice.find("control")

    for _ in range(3):
        restart_redis(sluice)
    last = timezone.now()
    stream.finish()
    seen_s = wait_until(
        lambda: probe_seen_at(sluice) > last, limit_s=30, what="a probe is taken from the queue"
    )

    print(f"a probe sent after the last restart was taken {seen_s:.1f} s later")  # noqa: T201
    assert stream.ended_well
    assert (sluice.find("worker"), sluice.find("control")) == (worker, control)


def test_a_redis_that_lost_everything_is_filled_again_fc23(sluice: Installed) -> None:
    engines, starts = sluice.engines(), sluice.count_starts()
    stream = Stream(sluice, tokens=200)
    stream.wait_begun()
    at = timezone.now()

    with redis.Redis.from_url(valkey_url(sluice.layout.sockets), socket_timeout=5) as client:
        client.flushall()
        wait_until(lambda: client.keys("sluice:*:table"), limit_s=5, what="the table is back in Redis")
    wait_until(lambda: probe_seen_at(sluice) > at, limit_s=30, what="a probe is taken from the queue")
    stream.finish()

    assert stream.ended_well
    assert (sluice.engines(), sluice.count_starts()) == (engines, starts)
    assert sluice.chat().status == 200


def answered_by(sluice: Installed) -> set[str]:
    return {sluice.chat(tokens=2).headers.get("x-sluice-replica", "") for _ in range(6)}


def answer_of(sluice: Installed, text: str) -> str:
    """Which replica."""
    return sluice.chat(tokens=2, messages=[{"role": "user", "content": text}]).headers.get(
        "x-sluice-replica", ""
    )


def probe_seen_at(sluice: Installed) -> datetime:
    ((at,),) = sluice.select("SELECT probe_seen_at FROM pool_nodelease")
    assert isinstance(at, datetime)
    return at


def restart_redis(sluice: Installed) -> None:
    """The supervisor starts it again at once: within five seconds this happens three times."""
    victim = sluice.find("valkey")
    send(victim.pid, signal.SIGKILL)
    wait_until(lambda: sluice.find("valkey") != victim and sluice.find("valkey").alive, limit_s=10)
