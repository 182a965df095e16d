from __future__ import annotations

from datetime import timedelta

import pytest

from pool.models import Alert, Rollout, RolloutEvent
from pool.queries.events import list_events
from tests import factories
from tests.factories import T0

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def test_plans_and_phases_of_the_model_stand_on_one_axis() -> None:
    model = factories.make_model()
    replica = factories.make_replica(
        factories.make_release(model), id="ra", generation=2, lane="short", phase="stopped"
    )
    factories.make_plan(model, created_at=T0 + MINUTE, comment="half of it")
    factories.make_plan(model, number=2, created_at=T0 + 3 * MINUTE, rollback_of=1)
    for phase, minute in (("starting", 0), ("loading", 1), ("ready", 2)):
        factories.make_phase_change(replica, phase, at=T0 + minute * MINUTE)
    other = factories.make_model("other")
    factories.make_plan(other, created_at=T0)

    found = list_events("smollm2", start=T0, end=T0 + 5 * MINUTE)

    assert [(event.kind, event.subject) for event in found.events] == [
        ("restart", "ra"),
        ("plan", "1"),
        ("ready", "ra"),
        ("rollback", "2"),
    ]
    assert (found.events[0].lane, found.events[0].release, found.events[1].detail) == (
        "short",
        1,
        "half of it",
    )
    assert found.omitted == 0


def test_a_first_start_is_no_restart() -> None:
    replica = factories.make_replica(factories.make_release(factories.make_model()), phase="stopped")
    factories.make_phase_change(replica, "starting", generation=1)

    assert list_events("smollm2", start=T0, end=T0 + MINUTE).events == ()


def test_of_too_many_events_the_newest_are_kept_and_the_others_counted() -> None:
    model = factories.make_model()
    for number in range(1, 6):
        factories.make_plan(model, number=number, created_at=T0 + number * MINUTE, in_force=False)

    found = list_events("smollm2", start=T0, end=T0 + 10 * MINUTE, limit=2)

    assert ([event.subject for event in found.events], found.omitted) == (["4", "5"], 3)


def test_alerts_and_rollouts_stand_on_the_same_axis() -> None:
    model = factories.make_model("smollm2")
    stable, candidate = (factories.make_release(model, number=number) for number in (1, 2))
    Alert.objects.create(
        source="slo", rule="ttft", subject="short ttft", model="smollm2", lane="short", level="red", peak="red",
        opened_at=T0, level_since=T0, closed_at=T0 + 2 * MINUTE, seen_at=T0,
    )  # fmt: skip
    rollout = Rollout.objects.create(
        id="oabc", model=model, candidate=candidate, stable=stable, base_plan=1, steps=[]
    )
    RolloutEvent.objects.create(
        rollout=rollout, at=T0 + MINUTE, kind="guard", code="worse", text="taken back"
    )
    RolloutEvent.objects.create(
        rollout=rollout, at=T0 + MINUTE, kind="operator", code="pause", text="not here"
    )

    found = list_events("smollm2", start=T0, end=T0 + 5 * MINUTE)

    assert [(event.kind, event.subject) for event in found.events] == [
        ("alert", "ttft"),
        ("rollout", "oabc"),
        ("alert_closed", "ttft"),
    ]
    assert found.omitted == 0
