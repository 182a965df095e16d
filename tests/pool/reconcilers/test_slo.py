from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pool.domain.alerting import Reading
from pool.domain.gauges import GaugeCell, Subject
from pool.models import Alert, AlertEvent, AlertWatch, AuditEntry, Node, NodeLease, Restriction, Slo, SloSpan
from pool.queries.slo_windows import RecentCells
from pool.reconcilers.slo import SloPass, propose
from pool.services import alerts, restrictions, slos
from pool.telemetry.store import add_gauges
from tests.factories import T0, make_node, make_release, make_replica
from tests.pool.reconcilers.slo_world import ACTOR, STEP, held, levels, live, make_world, send

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def actions() -> list[str]:
    return list(Restriction.objects.order_by("id").values_list("kind", flat=True))


def test_a_broken_promise_alerts_and_sheds_batch() -> None:
    make_world()

    live(2, [2.7])

    assert ("ttft_p99", "orange") in levels()
    assert [(one.kind, one.lane) for one in held()] == [("shed_batch", "short")]
    alert = Alert.objects.get(rule="ttft_p99")
    assert alert.evidence["value"] == pytest.approx(2.7, rel=0.01)
    assert alert.evidence["samples"] >= 150
    assert list(alert.events.values_list("kind", flat=True))[:2] == ["raised", "acted"]


def test_red_holds_back_more_than_orange() -> None:
    make_world()

    live(2, [4.0])

    assert sorted(actions()) == ["admission_ratio", "no_long", "shed_batch"]
    assert {one.kind: one.value for one in held()}["admission_ratio"] == 0.8


def test_recovery_lowers_closes_and_takes_back() -> None:
    make_world(peak_hours=list(range(24)))
    work, now = live(3, [2.7])

    live(7, [0.05], start=now, passes=work)

    assert ("ttft_p99", "orange") not in levels()
    assert held() == []
    assert Restriction.objects.get().end_reason == "recovered"
    assert Alert.objects.get(rule="ttft_p99").close_reason == "fell"


@pytest.mark.parametrize("restarts", [False, True])
def test_fc59_a_p99_that_swings_around_its_limit_makes_one_alert_and_one_action(restarts: bool) -> None:
    make_world(yellow_s=None, orange_s=1.0, red_s=None, ttft_p50_s=None, ttft_p95_s=None, ttft_p99_s=1.0)
    swing = [0.98, 1.01, 0.99, 1.02]

    work, now = live(2, swing)
    live(2, swing, start=now, passes=None if restarts else work)

    events = AlertEvent.objects.filter(alert__rule="ttft_p99")
    assert [events.filter(kind=kind).count() for kind in ("raised", "closed", "acted")] == [1, 0, 1]
    assert actions() == ["shed_batch"]


def test_without_traffic_nothing_is_judged_and_what_holds_runs_out() -> None:
    make_world(peak_hours=list(range(24)))
    work, now = live(2, [2.7])

    live(7, [None], start=now, passes=work)

    assert ("ttft_p99", "orange") in levels()
    assert Alert.objects.get(rule="ttft_p99").data_state == "absent"
    assert held() == []
    assert Restriction.objects.get().end_reason == "ran_out"


def test_a_lane_that_was_always_silent_has_no_alert() -> None:
    make_world()

    live(3, [None])

    assert Alert.objects.count() == 0
    assert Slo.objects.get().report["state"] == "absent"


def test_few_requests_are_no_verdict() -> None:
    make_world()
    work, now = SloPass(), T0
    for _ in range(12):
        send(now, 9.0, count=2)
        now += STEP
        work(now)

    assert Alert.objects.count() == 0
    assert Slo.objects.get().report["objectives"]["ttft_p99"]["state"] == "few"


def test_a_rehearsal_tells_and_does_nothing() -> None:
    make_world(dry_run=True)

    live(2, [2.7])

    assert Restriction.objects.get().dry_run
    assert held() == []
    assert AlertEvent.objects.get(kind="acted").details["dry_run"] is True


def test_an_operators_hold_keeps_the_loop_from_acting() -> None:
    slo = make_world()
    slos.hold_slo(slo.pk, lasts=timedelta(hours=1), actor=ACTOR, now=T0)

    live(2, [2.7])

    assert ("ttft_p99", "orange") in levels()
    assert actions() == []
    blocked = AlertEvent.objects.filter(kind="blocked")
    assert [event.details for event in blocked] == [{"step": "shed_batch", "reason": "held"}]


def test_what_a_person_takes_back_stays_back_for_a_while() -> None:
    make_world(opposite_after_s=300)
    work, now = live(2, [2.7])
    restrictions.take_back(Restriction.objects.get().pk, actor=ACTOR, now=now)

    live(3, [2.7], start=now, passes=work)

    assert held() == []
    assert Restriction.objects.get().ended_by == "otto"


def test_what_a_person_made_is_not_made_twice_and_not_ended() -> None:
    make_world(peak_hours=list(range(24)))
    wish = restrictions.RestrictionWish("shed_batch", "short", lasts=timedelta(hours=2))
    restrictions.restrict("smollm2", wish, actor=ACTOR, now=T0)

    work, now = live(2, [2.7])
    live(7, [0.05], start=now, passes=work)

    assert [one.kind for one in held()] == ["shed_batch"]
    assert Restriction.objects.get().made_by == "otto"


def test_a_long_alert_prolongs_its_restriction_without_counting_as_a_new_action() -> None:
    make_world(max_actions_per_hour=1)

    live(8, [2.7])

    assert len(held()) == 1
    assert AlertEvent.objects.filter(kind="acted").count() == 1
    assert AuditEntry.objects.filter(action="restriction.set").count() == 1


def test_errors_burn_their_budget_and_only_tell() -> None:
    make_world()
    work, now = SloPass(), T0
    for _ in range(9):
        send(now, 0.05, errors=30)
        now += STEP
        work(now)

    assert ("errors_burn", "red") in levels()
    assert held() == []


def test_spans_are_counted_once_however_often_they_are_read() -> None:
    make_world()
    work, now = live(7, [2.7])
    SloPass()(now)
    SloPass()(now + STEP)

    totals = [
        sum(values) for values in zip(*SloSpan.objects.values_list("requests", "ttft_p99"), strict=True)
    ]

    assert totals == [7 * 3 * 150, 7 * 3 * 150]
    assert work.sums


def test_an_slo_that_ends_closes_its_alerts() -> None:
    slo = make_world()
    _, now = live(2, [2.7])

    slos.end_slo(slo.pk, actor=ACTOR, now=now)

    assert levels() == []
    assert set(Alert.objects.values_list("close_reason", flat=True)) == {"not_watched"}
    SloPass()(now + STEP)
    assert held() == []


def test_a_model_that_is_new_proposes_from_its_first_thousand_requests() -> None:
    make_world()
    for number in range(7):
        send(T0 + number * STEP, 0.2, lane="mid")

    assert propose(T0 + MINUTE * 2) == 1
    assert propose(T0 + MINUTE * 2) == 0

    proposal = Slo.objects.get(phase="proposed")
    assert (proposal.lane, proposal.figures["streams"]) == ("mid", 1050)
    assert proposal.settings["ttft_p99_s"] == pytest.approx(0.25, rel=0.05)
    SloPass()(T0 + MINUTE * 3)
    assert Alert.objects.count() == 0


def test_a_dismissed_proposal_is_not_made_again() -> None:
    make_world()
    for number in range(7):
        send(T0 + number * STEP, 0.2, lane="mid")
    propose(T0 + MINUTE * 2)
    slos.dismiss_proposal(Slo.objects.get(phase="proposed").pk, actor=ACTOR, now=T0)

    assert propose(T0 + MINUTE * 3) == 0


def note_gauges(kind: str, name: str, at: Any, **values: float) -> None:
    cell = GaugeCell()
    for gauge, value in values.items():
        cell.note(gauge, value)
    add_gauges({(Subject(kind, name, "node-a", "smollm2", 1, ""), at): cell})


def make_leased_node() -> Node:
    node = make_node("node-a")
    NodeLease.objects.update(until=T0 + HOUR)
    return node


def test_memory_of_an_engine_alerts_and_refuses_long_requests() -> None:
    slo = make_world()
    make_replica(make_release(slo.model), id="r1", node=make_leased_node())
    work, now = SloPass(), T0
    for _ in range(20):
        note_gauges("replica", "r1", now, inactive_split_bytes=3e9, reserved_bytes=1e10, kv_blocks=100,
                    kv_used_blocks=80, kv_held_tokens=1600, kv_tail_tokens=100)  # fmt: skip
        now += STEP
        work(now)

    assert levels() == [("allocator_fragmentation", "red"), ("kv_in_use", "yellow")]
    assert [one.kind for one in held()] == ["no_long"]
    reasons = AlertEvent.objects.filter(kind="blocked").values_list("details__step", flat=True)
    assert list(reasons) == ["restart"]


def test_an_engine_that_falls_silent_is_not_a_healthy_one() -> None:
    slo = make_world()
    replica = make_replica(make_release(slo.model), id="r1", node=make_leased_node())
    work, now = SloPass(), T0
    for _ in range(6):
        note_gauges("replica", "r1", now, kv_blocks=100, kv_used_blocks=90)
        now += STEP
        work(now)

    for _ in range(12):
        now += STEP
        work(now)

    assert levels() == [("kv_in_use", "orange")]
    assert Alert.objects.get().data_state == "absent"
    replica.phase = "stopped"
    replica.save()
    work(now + STEP)
    assert levels() == []


def test_an_alarm_tells_that_half_of_the_nodes_are_silent_fc21() -> None:
    make_world()
    for number in range(4):
        node = make_node(f"node-{number}")
        NodeLease.objects.filter(node=node).update(until=T0 + number * HOUR + 2 * STEP)
    work, now = SloPass(), T0 + HOUR
    for _ in range(2):
        work(now := now + STEP)
    quiet = levels()

    for _ in range(2):
        work(now := now + STEP)

    assert (quiet, levels()) == ([], [("nodes_silent", "orange")])
    assert Alert.objects.get().evidence["samples"] == 4
    assert held() == []
    NodeLease.objects.update(until=now + HOUR)
    for _ in range(3):
        work(now := now + STEP)
    assert levels() == []


def test_recent_cells_read_again_what_comes_late() -> None:
    make_world()
    cells, ref = RecentCells(), slos_ref()
    send(T0, 0.1)
    cells.refresh(T0 + STEP)

    send(T0, 0.1)
    cells.refresh(T0 + 2 * STEP)

    assert cells.window(ref, MINUTE, T0 + 2 * STEP).requests == 300
    assert cells.window(ref, STEP, T0 + 3 * STEP).requests == 0
    assert cells.window(replace(ref, tier="vip"), MINUTE, T0 + 2 * STEP).requests == 0
    cells.refresh(T0 + MINUTE * 30)
    assert not cells.slots


def slos_ref() -> Any:
    from pool.queries.slos import list_active_slos

    return list_active_slos()[0]


def test_a_pass_costs_a_fixed_number_of_queries(django_assert_max_num_queries: Any) -> None:
    make_world()
    work, now = live(2, [0.05])
    send(now, 0.05)

    with django_assert_max_num_queries(30):
        work(now + STEP)


def test_wakeups_in_between_cost_nothing(django_assert_num_queries: Any) -> None:
    make_world()
    work, now = live(1, [0.05])

    with django_assert_num_queries(0):
        work(now + timedelta(seconds=1))


def test_states_of_quiet_values_leave_no_rows() -> None:
    make_world()

    live(2, [0.05])

    assert AlertWatch.objects.count() == 0
    assert alerts.list_watched() == {}
    assert Reading(None).is_known is False
