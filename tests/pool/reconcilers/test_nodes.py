from datetime import datetime, timedelta

import pytest

from pool.models import AuditEntry, GatewayInstance, Node, NodeLease, Replica
from pool.reconcilers.loop import monotonic_watch
from pool.reconcilers.nodes import make_pass, run_pass
from tests.pool.services.world import NOW, make_node, make_world

pytestmark = pytest.mark.django_db
LONG = timedelta(hours=1)
OVER = NOW + timedelta(seconds=11)
LOST = NOW + timedelta(seconds=90)


def make_pool(count: int = 3) -> list[Node]:
    return [make_node(f"node-{number}") for number in range(count)]


def renew_others(silent: Node, now: datetime) -> None:
    NodeLease.objects.exclude(node=silent).update(until=now + timedelta(seconds=10))


def make_gateway(now: datetime, **nodes: float) -> None:
    GatewayInstance.objects.create(id="g1", seen_at=now, via="redis", report={"nodes": nodes})


def phase_of(node: Node) -> str:
    return Node.objects.get(pk=node.pk).phase


def test_a_silent_node_becomes_unreachable_and_later_replaced() -> None:
    silent = make_pool()[0]

    renew_others(silent, OVER)
    run_pass(OVER, watching_for=LONG)
    assert phase_of(silent) == "unreachable"

    renew_others(silent, LOST)
    make_gateway(LOST, **{"node-0": 80.0})
    run_pass(LOST, watching_for=LONG)
    assert phase_of(silent) == "replaced"


def test_nothing_is_moved_when_half_of_the_nodes_are_missing_fc21() -> None:
    nodes = make_pool(2)
    make_gateway(LOST)
    Node.objects.update(phase="unreachable")

    report = run_pass(LOST, watching_for=LONG)

    assert {phase_of(node) for node in nodes} == {"unreachable"}
    assert "missing" in report["frozen"]["node-0"]  # type: ignore[index]
    assert Node.objects.get(name="node-0").reason_code == "too_many_missing"


def test_a_node_whose_engines_still_answer_is_left_alone_fc04() -> None:
    silent = make_pool()[0]
    Node.objects.filter(pk=silent.pk).update(phase="unreachable")
    renew_others(silent, LOST)
    make_gateway(LOST, **{"node-0": 2.0})

    report = run_pass(LOST, watching_for=LONG)

    assert phase_of(silent) == "unreachable"
    assert "node-0" in report["frozen"]  # type: ignore[operator]


def test_a_loop_that_stalled_itself_moves_nothing() -> None:
    silent = make_pool()[0]
    Node.objects.filter(pk=silent.pk).update(phase="unreachable")
    renew_others(silent, LOST)
    make_gateway(LOST)

    run_pass(LOST, watching_for=timedelta(seconds=5))

    assert phase_of(silent) == "unreachable"


def test_a_wish_of_the_operator_moves_the_node_and_back() -> None:
    (node,) = make_pool(1)
    Node.objects.update(wish="drain")
    run_pass(NOW, watching_for=LONG)
    assert phase_of(node) == "draining"

    Node.objects.update(wish="serve")
    run_pass(NOW, watching_for=LONG)
    assert phase_of(node) == "ready"


def test_a_queue_that_takes_no_probe_is_said_to_be_stalled_fc46() -> None:
    (node,) = make_pool(1)
    NodeLease.objects.update(probe_sent_at=NOW, probe_seen_at=NOW - timedelta(seconds=60))
    run_pass(NOW, watching_for=LONG)
    assert (phase_of(node), Node.objects.get().reason_code) == ("ready", "queue_stalled")

    NodeLease.objects.update(probe_seen_at=NOW)
    run_pass(NOW, watching_for=LONG)
    assert Node.objects.get().reason_code == ""


def test_a_control_plane_that_stood_still_for_three_minutes_moves_no_engine_fc21(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s = 1000.0
    monkeypatch.setattr("pool.reconcilers.loop.time.monotonic", lambda: clock_s)
    make_world(replicas=3)
    make_pool(9)
    work, now = make_pass(monotonic_watch()), NOW
    before = list(Replica.objects.order_by("pk").values_list("pk", "generation", "phase", "node_id"))
    for _ in range(70):
        clock_s, now = clock_s + 1, now + timedelta(seconds=1)
        NodeLease.objects.update(until=now + timedelta(seconds=10))
        work(now)

    # Renewals waited behind it all the while, and come one after the other: six of ten are late.
    clock_s, now = clock_s + 180, now + timedelta(minutes=3)
    late = list(Node.objects.order_by("name")[:6])
    NodeLease.objects.exclude(node__in=late).update(until=now + timedelta(seconds=10))
    make_gateway(now, **{node.name: 600.0 for node in late})
    frozen = [work(now)["frozen"], work(now)["frozen"]][-1]
    clock_s, now = clock_s + 1, now + timedelta(seconds=1)
    told = set(Node.objects.filter(pk__in=[node.pk for node in late]).values_list("phase", "reason_code"))
    NodeLease.objects.update(until=now + timedelta(seconds=10))
    work(now)

    assert set(frozen) == {node.name for node in late}  # type: ignore[call-overload]
    assert told == {("unreachable", "too_many_missing")}
    assert set(Node.objects.values_list("phase", flat=True)) == {"ready"}
    assert list(Replica.objects.order_by("pk").values_list("pk", "generation", "phase", "node_id")) == before
    assert not AuditEntry.objects.filter(action="node.replaced").exists()


def test_after_a_stall_not_even_a_single_silent_node_is_replaced_for_a_minute_fc21(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s = 1000.0
    monkeypatch.setattr("pool.reconcilers.loop.time.monotonic", lambda: clock_s)
    silent = make_pool(10)[0]
    work, now = make_pass(monotonic_watch()), NOW
    work(now)

    phases = []
    for step_s in (180, 1, *[1] * 58, 1, 1):
        clock_s, now = clock_s + step_s, now + timedelta(seconds=step_s)
        renew_others(silent, now)
        GatewayInstance.objects.all().delete()
        make_gateway(now, **{silent.name: 600.0})
        work(now)
        phases.append(Node.objects.values_list("phase", "reason_code").get(pk=silent.pk))

    assert phases[1] == ("unreachable", "observer_was_blind")
    assert set(phases[1:60]) == {("unreachable", "observer_was_blind")}
    assert phases[-1] == ("replaced", "node_lost")
