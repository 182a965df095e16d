import uuid
from datetime import timedelta

import pytest

from pool.domain.backoff import Failure, FailureKind, History
from pool.domain.replica import Fail, Phase, Report
from pool.domain.routing_table import from_bytes
from pool.models import DeviceClaim, Intent, PhaseChange, PortReservation, Replica
from pool.services.intents import claim_intent, finish_intent, list_open_intents
from pool.services.replicas import (
    Because,
    begin_drain,
    fail,
    mark_stopped,
    move,
    note,
    report,
    retry,
    seen,
    send_stop,
)
from pool.services.routing import current_delivery
from tests.pool.services.world import NOW, SECRET, make_replica, make_world

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=1)
WARMED = Because("ready", "Warm-up done.")


def routed_ids() -> list[str]:
    table = from_bytes(current_delivery().body, SECRET)
    return [replica.id for release in table.models[0].releases for replica in release.replicas]


def test_a_warmed_replica_becomes_ready_and_is_routed_in_one_transaction() -> None:
    world = make_world()
    row = make_replica(world, phase="warming")

    assert report(seen(row), Report.WARMED_UP, because=WARMED, now=LATER)

    row.refresh_from_db()
    assert (row.phase, row.ready_at, row.routed) == ("ready", LATER, True)
    assert routed_ids() == [row.pk]
    assert PhaseChange.objects.get(replica=row).phase == "ready"


def test_a_repeated_report_changes_nothing_fc12() -> None:
    world = make_world()
    row = make_replica(world, phase="warming")
    at = seen(row)
    report(at, Report.WARMED_UP, because=WARMED, now=LATER)

    assert not report(at, Report.WARMED_UP, because=WARMED, now=LATER)

    assert PhaseChange.objects.count() == 1


def test_a_report_of_an_older_generation_changes_nothing_fc04() -> None:
    world = make_world()
    row = make_replica(world, phase="warming", generation=2)
    stale = seen(row)
    Replica.objects.filter(pk=row.pk).update(generation=3, phase="warming")

    assert not report(stale, Report.WARMED_UP, because=WARMED, now=LATER)
    assert not note(stale, stage="loading weights")

    assert routed_ids() == []


def test_a_failed_replica_leaves_the_table_and_keeps_its_reason() -> None:
    world = make_world()
    row = make_replica(world, phase="ready")
    failure = Failure(FailureKind.TRANSIENT, "engine_died", "The engine ended.")

    assert fail(seen(row), Fail(failure, History(crashes_at=(LATER,)), LATER), now=LATER)

    row.refresh_from_db()
    assert (row.phase, row.reason_code, row.failure_kind) == ("failed", "engine_died", "transient")
    assert row.crashes_at == [LATER.isoformat()]
    assert routed_ids() == []


def test_a_drain_keeps_the_number_of_the_table_that_no_longer_names_the_replica() -> None:
    world = make_world()
    row = make_replica(world, phase="warming")
    report(seen(row), Report.WARMED_UP, because=WARMED, now=NOW)
    row.refresh_from_db()

    begin_drain(seen(row), reason="scaled down", deadline_at=LATER, now=NOW)

    row.refresh_from_db()
    delivery = current_delivery()
    assert (row.unrouted_epoch, row.unrouted_version) == (delivery.epoch, delivery.version)
    assert routed_ids() == []


def test_a_stop_is_asked_once_and_voids_a_start_that_nobody_took() -> None:
    world = make_world()
    row = make_replica(world, phase="draining")
    Intent.objects.create(node=world.node, replica=row, generation=1, action="start")

    for _ in range(2):
        assert send_stop(seen(row), force=False, reason="drained", now=LATER)

    assert list(Intent.objects.order_by("id").values_list("action", "phase")) == [
        ("start", "void"),
        ("stop", "pending"),
    ]


def test_a_stopped_replica_gives_its_reservations_back() -> None:
    world = make_world()
    row = make_replica(world, phase="draining")
    PortReservation.objects.create(node=world.node, port=21000, replica=row, generation=1)
    DeviceClaim.objects.create(node=world.node, device_uuid="cpu", replica=row, generation=1)

    assert mark_stopped(seen(row), reason="gone", now=LATER)

    assert not PortReservation.objects.exists()
    assert not DeviceClaim.objects.exists()


def test_a_retry_clears_the_place_and_keeps_the_history() -> None:
    world = make_world()
    row = make_replica(world, phase="failed", node=world.node, generation=1, failed_starts=2, port=21000)

    assert retry(seen(row), reason="next try", now=LATER)

    row.refresh_from_db()
    assert (row.phase, row.node, row.port, row.failed_starts, row.generation) == ("pending", None, None, 2, 1)


def test_a_move_that_the_life_cycle_does_not_know_is_a_bug() -> None:
    world = make_world()
    row = make_replica(world, phase="ready")

    with pytest.raises(ValueError, match="does not go from ready to loading"):
        move(seen(row), Phase.LOADING, because=WARMED, now=LATER)


def test_an_intent_is_taken_by_one_worker_and_by_its_successor() -> None:
    world = make_world()
    row = make_replica(world, phase="starting")
    intent = Intent.objects.create(node=world.node, replica=row, generation=1, action="start")
    first, second = world.node.lease.holder, uuid.uuid4()

    assert claim_intent(intent, holder=first, now=NOW)
    assert not claim_intent(intent, holder=first, now=NOW)
    assert claim_intent(intent, holder=second, now=NOW)
    assert not finish_intent(intent, holder=first, now=NOW, result="started")
    assert finish_intent(intent, holder=second, now=NOW, result="started")
    assert list_open_intents(world.node) == []


def test_an_intent_of_an_older_generation_is_not_carried_out_fc04() -> None:
    world = make_world()
    row = make_replica(world, phase="starting", generation=2)
    old = Intent.objects.create(node=world.node, replica=row, generation=1, action="start")

    assert list_open_intents(world.node) == []
    assert not claim_intent(old, holder=world.node.lease.holder, now=NOW)
