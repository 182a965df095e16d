"""A node whose worker falls silent: left alone while it serves, replaced when it does not, cleaned when it returns."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from pool.domain.backoff import Failure, FailureKind
from pool.domain.replica import Report
from pool.domain.routing_table import from_bytes
from pool.models import GatewayInstance, Node, NodeLease, Replica
from pool.reconcilers import nodes as node_loop
from pool.services.replicas import Because, note_failure, report, seen
from pool.services.routing import current_delivery
from pool.services.wishes import set_node_wish
from tests.life.box import Box, BoxWorker, is_alive
from tests.pool.services.world import ACTOR, SECRET

WATCHED = timedelta(minutes=5)


@pytest.fixture
def lost(box: Box) -> BoxWorker:
    """The node that holds the one replica; node-a and node-c take nothing yet, so that it is not half of the pool."""
    set_node_wish("node-a", "cordon", actor=ACTOR)
    worker = box.add_worker("node-b")
    box.add_worker("node-c")
    set_node_wish("node-c", "cordon", actor=ACTOR)
    node_loop.run_pass(timezone.now(), watching_for=WATCHED)
    box.scale(1)
    (row,) = box.run_until_ready()
    assert row.node == worker.node
    return worker


def routed() -> set[tuple[str, int, str]]:
    table = from_bytes(current_delivery().body, SECRET)
    return {(r.id, r.generation, r.node) for release in table.models[0].releases for r in release.replicas}


def fall_silent(box: Box, worker: BoxWorker) -> None:
    """Cut off from PostgreSQL for longer than a minute; its engines know nothing of it."""
    worker.kill()
    box.workers.remove(worker)
    past = timezone.now() - timedelta(seconds=61)
    NodeLease.objects.filter(node=worker.node).update(renewed_at=past - timedelta(seconds=10), until=past)


def hear_gateway(*, last_answer_s: float) -> None:
    values = {"seen_at": timezone.now(), "via": "redis", "report": {"nodes": {"node-b": last_answer_s}}}
    GatewayInstance.objects.update_or_create(id="gw-1", defaults=values)


def watch_nodes() -> None:
    for _ in range(2):
        node_loop.run_pass(timezone.now(), watching_for=WATCHED)


def test_a_silent_node_that_answers_gateways_is_left_alone_fc04(box: Box, lost: BoxWorker) -> None:
    (before,) = lost.engines()
    fall_silent(box, lost)
    hear_gateway(last_answer_s=2.0)

    watch_nodes()
    for _ in range(3):
        box.step()

    lost.node.refresh_from_db()
    row = Replica.objects.get()
    assert (lost.node.phase, lost.node.reason_code) == ("unreachable", "still_serving")
    assert (row.phase, row.generation) == ("ready", 1)
    assert routed() == {(row.pk, 1, "node-b")}
    assert is_alive(before.pid or 0)


def test_a_lost_node_is_replaced_and_its_engine_stopped_on_return_fc04(box: Box, lost: BoxWorker) -> None:
    (old,) = lost.engines()
    late = seen(Replica.objects.get())
    fall_silent(box, lost)
    hear_gateway(last_answer_s=30.0)
    set_node_wish("node-a", "serve", actor=ACTOR)

    watch_nodes()
    box.run_until(lambda: Replica.objects.filter(phase="ready", generation=2).exists())
    row = Replica.objects.get()

    assert Node.objects.get(name="node-b").phase == "replaced"
    assert (row.node.name if row.node else "", row.generation) == ("node-a", 2)
    # Both live, one is in service: the table fences the other.
    assert is_alive(old.pid or 0)
    assert routed() == {(row.pk, 2, "node-a")}

    # The lost worker was only cut off: what it still says of its generation changes nothing.
    assert not note_failure(late, Failure(FailureKind.TRANSIENT, "hung", "late"), engine="gone")
    assert not report(late, Report.WARMED_UP, because=Because("ready", "late"), now=timezone.now())

    lost.start()
    box.workers.append(lost)
    box.run_until(lambda: not is_alive(old.pid or 0))
    box.run_until(lambda: lost.node.facts.get("stale_engines") == 0)
    watch_nodes()

    assert Node.objects.get(name="node-b").phase == "ready"
    assert [(engine.replica_id, engine.generation) for engine in box.engines()] == [(row.pk, 2)]
    assert routed() == {(row.pk, 2, "node-a")}
    assert Replica.objects.get().phase == "ready"


def test_half_of_the_pool_missing_freezes_the_loop_fc04(box: Box, lost: BoxWorker) -> None:
    fall_silent(box, lost)
    other = box.workers[-1]
    fall_silent(box, other)
    hear_gateway(last_answer_s=300.0)

    watch_nodes()

    silent = Node.objects.filter(name__in=["node-b", "node-c"])
    assert {(node.phase, node.reason_code) for node in silent} == {("unreachable", "too_many_missing")}
    assert Replica.objects.get().phase == "ready"
