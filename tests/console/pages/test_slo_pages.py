"""SLOs and alerts on their pages: who may do what, what is shown, and that unknown is not shown as good."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from pool.models import Alert, AlertEvent, AuditEntry, Restriction, RuleChange, Slo, SloSpan, Webhook
from pool.services.audit import Actor
from pool.services.restrictions import RestrictionWish, restrict
from pool.services.slos import SloWish, create_slo
from tests.factories import make_model, make_routing_state

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
ACTOR = Actor("otto", "test")
HOSTILE = "'\"><img src=x onerror=alert(1)>"
REPORT = {
    "window_s": 300.0, "requests": 500, "streams": 500, "state": "measured",
    "objectives": {
        "ttft_p99": {"value": 2.71, "limit": 2.0, "samples": 500, "state": "measured", "budget_left": 0.25,
                     "budget_requests": 9000, "burn_1h": 3.2, "burn_6h": 1.0},
        "errors": {"value": 0.001, "limit": 0.005, "samples": 500, "state": "measured", "budget_left": 0.9,
                   "budget_requests": 9000, "burn_1h": 0.1, "burn_6h": 0.1},
    },
}  # fmt: skip


@pytest.fixture
def slo(routing_state: None) -> Slo:
    make_model("smollm2")
    return create_slo("smollm2", SloWish(lane="short"), actor=ACTOR, now=timezone.now())


def make_alert(slo: Slo | None = None, **values: Any) -> Alert:
    now = timezone.now()
    fields: dict[str, Any] = {
        "source": "slo", "rule": "ttft_p99", "subject": "smollm2/short/*/*", "slo": slo, "model": "smollm2",
        "lane": "short", "level": "orange", "peak": "red", "opened_at": now, "level_since": now, "seen_at": now,
        "evidence": {"value": 2.71, "samples": 1240, "unit": "s", "window_s": 300.0, "promise": 2.0,
                     "limits": {"yellow": 1.8, "orange": 2.5}, "from": now.isoformat(), "to": now.isoformat()},
    }  # fmt: skip
    return Alert.objects.create(**(fields | values))


def text_of(client: Client, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers or None)
    assert answer.status_code == 200, answer.content[:500]
    return " ".join(answer.content.decode().split())


def test_an_slo_shows_budget_burn_and_measures(slo: Slo, viewer: User, sign_in: SignIn) -> None:
    slo.report = REPORT | {"at": timezone.now().isoformat()}
    slo.save()
    SloSpan.objects.create(
        slo=slo, at=timezone.now() - timedelta(hours=1), requests=50, streams=50, ttft_p99=3
    )

    page = text_of(sign_in(viewer), "/slos/")

    assert "25 %" in page
    assert "3.2 ×" in page
    assert "2.71 s" in page
    assert '<path d="M' in page
    assert "kept" in page


def test_what_was_not_judged_is_not_shown_as_kept(slo: Slo, viewer: User, sign_in: SignIn) -> None:
    page = text_of(sign_in(viewer), "/slos/")

    assert "not judged" in page
    assert "kept" not in page
    assert "no request yet" in page


def test_a_stale_report_is_not_shown_as_kept(slo: Slo, viewer: User, sign_in: SignIn) -> None:
    slo.report = REPORT | {"at": (timezone.now() - timedelta(minutes=5)).isoformat()}
    slo.save()

    assert "not judged" in text_of(sign_in(viewer), "/slos/")


def test_without_slos_the_page_says_how_to_get_one(
    routing_state: None, viewer: User, sign_in: SignIn
) -> None:
    assert "Nothing is promised yet" in text_of(sign_in(viewer), "/slos/")


def test_a_proposal_is_accepted_by_an_operator_only(
    slo: Slo, viewer: User, operator: User, sign_in: SignIn
) -> None:
    proposal = Slo.objects.create(
        model=slo.model, lane="mid", phase="proposed", settings={"ttft_p99_s": 5.0, "yellow_s": 4.5},
        figures={"streams": 1204, "ttft_p99_s": 4.0},
    )  # fmt: skip

    assert "1,204 streams" in text_of(sign_in(viewer), "/slos/")
    assert sign_in(viewer).post(f"/slos/{proposal.pk}/accept/").status_code == 403
    assert sign_in(operator).post(f"/slos/{proposal.pk}/accept/").status_code == 302

    proposal.refresh_from_db()
    assert proposal.phase == "active"
    assert AuditEntry.objects.filter(action="slo.accept", actor="otto").exists()


def test_an_slo_is_made_from_a_template_and_changed(slo: Slo, operator: User, sign_in: SignIn) -> None:
    browser = sign_in(operator)
    made = browser.post(
        "/slos/new/", {"model": "smollm2", "lane": "mid", "template": "finance", "dry_run": "on"}
    )
    row = Slo.objects.get(lane="mid")
    assert made.headers["Location"] == f"/slos/{row.pk}/"
    assert (row.settings["ttft_p99_s"], row.settings["dry_run"]) == (1.5, True)

    form = {
        "ttft_p99_s": "1.6", "yellow_s": "1.4", "errors_ratio": "0.5", "min_samples": "50", "orange_steps": "no_long",
        "max_actions_per_hour": "2", "enter_hold_s": "10", "exit_hold_s": "60", "cool_down_s": "60",
        "opposite_after_s": "60", "peak_hours": "8, 9",
    }  # fmt: skip
    assert browser.post(f"/slos/{row.pk}/", form).status_code == 302

    row.refresh_from_db()
    assert row.settings["errors_ratio"] == 0.005
    assert row.settings["ttft_p50_s"] is None
    assert row.settings["peak_hours"] == [8, 9]
    assert row.settings["orange_steps"] == ["no_long"]
    assert row.settings["dry_run"] is False


def test_wrong_limits_stand_at_their_field(slo: Slo, operator: User, sign_in: SignIn) -> None:
    form = {
        "yellow_s": "3", "orange_s": "2", "min_samples": "50", "max_actions_per_hour": "2", "enter_hold_s": "10",
        "exit_hold_s": "60", "cool_down_s": "60", "opposite_after_s": "60",
    }  # fmt: skip

    answer = sign_in(operator).post(f"/slos/{slo.pk}/", form)

    assert answer.status_code == 422
    assert "orange_s is above the one before it" in answer.content.decode()


def test_a_second_slo_of_a_scope_is_refused(slo: Slo, operator: User, sign_in: SignIn) -> None:
    form = {"model": "smollm2", "lane": "short", "template": "interactive"}

    assert sign_in(operator).post("/slos/new/", form).status_code == 422
    assert Slo.objects.count() == 1


def test_an_slo_is_held_released_and_ended(slo: Slo, operator: User, sign_in: SignIn) -> None:
    browser = sign_in(operator)

    browser.post(f"/slos/{slo.pk}/hold/", {"lasts_s": "3600"})
    assert "Let it act again" in text_of(browser, f"/slos/{slo.pk}/")
    browser.post(f"/slos/{slo.pk}/hold/")
    assert "Hold its actions" in text_of(browser, f"/slos/{slo.pk}/")
    browser.post(f"/slos/{slo.pk}/end/")

    assert Slo.objects.count() == 0
    actions = AuditEntry.objects.values_list("action", flat=True).order_by("id")
    assert list(actions)[-3:] == ["slo.hold", "slo.release", "slo.end"]


def test_an_alert_shows_since_when_by_which_figures_and_what_was_done(
    slo: Slo, operator: User, sign_in: SignIn
) -> None:
    alert = make_alert(slo)
    now = timezone.now()
    AlertEvent.objects.create(
        alert=alert, at=now, kind="raised", level="orange", details={"value": 2.71, "samples": 1240}
    )
    made = restrict(
        "smollm2", RestrictionWish("shed_batch", "short"), actor=Actor("slo", "loop"), now=now, alert=alert.pk
    )
    browser = sign_in(operator)

    listed, page = text_of(browser, "/alerts/"), text_of(browser, f"/alerts/{alert.pk}/")

    for shown in (listed, page):
        assert "2.71 s over 5 min, 1,240 samples" in shown
        assert "tier batch is refused" in shown
        assert f'data-take-back="{made.pk}"' in shown
    assert "/models/smollm2/latency/?from=" in page
    assert "Raised to orange at 2.71 s, 1,240 samples" in page
    assert text_of(browser, "/alerts/", HX_Request="true").startswith("<dl")
    assert text_of(browser, f"/alerts/{alert.pk}/", HX_Request="true").startswith("<dl")


def test_an_alert_without_data_says_that_it_cannot_be_judged(slo: Slo, viewer: User, sign_in: SignIn) -> None:
    alert = make_alert(slo, data_state="absent")

    assert "It cannot be judged now: no data." in text_of(sign_in(viewer), f"/alerts/{alert.pk}/")


def test_acknowledging_and_holding_an_alert(slo: Slo, viewer: User, operator: User, sign_in: SignIn) -> None:
    alert = make_alert(slo)
    for path in ("acknowledge", "hold"):
        assert sign_in(viewer).post(f"/alerts/{alert.pk}/{path}/").status_code == 403

    browser = sign_in(operator)
    browser.post(f"/alerts/{alert.pk}/acknowledge/")
    browser.post(f"/alerts/{alert.pk}/hold/", {"lasts_s": "900"})

    alert.refresh_from_db()
    assert (alert.acknowledged_by, alert.held_by) == ("otto", "otto")
    assert list(alert.events.values_list("kind", flat=True)) == ["acknowledged", "held"]


def test_taking_back_a_restriction(slo: Slo, viewer: User, operator: User, sign_in: SignIn) -> None:
    made = restrict("smollm2", RestrictionWish("no_long"), actor=ACTOR, now=timezone.now())
    assert sign_in(viewer).post(f"/restrictions/{made.pk}/end/").status_code == 403

    sign_in(operator).post(f"/restrictions/{made.pk}/end/")

    made.refresh_from_db()
    assert (made.end_reason, made.ended_by) == ("taken_back", "otto")
    assert sign_in(operator).post(f"/restrictions/{made.pk}/end/").status_code == 409


def test_the_control_page_shows_what_is_held_back(slo: Slo, operator: User, sign_in: SignIn) -> None:
    restrict("smollm2", RestrictionWish("shed_batch", "short"), actor=ACTOR, now=timezone.now())

    page = text_of(sign_in(operator), "/models/smollm2/control/")

    assert "tier batch is refused" in page
    assert "data-take-back" in page


def test_an_operator_restricts_by_hand(slo: Slo, operator: User, viewer: User, sign_in: SignIn) -> None:
    form = {"kind": "close_lane", "lane": "short", "lasts_min": "30"}
    assert sign_in(viewer).post("/models/smollm2/restrict/", form).status_code == 403

    sign_in(operator).post("/models/smollm2/restrict/", form)

    made = Restriction.objects.get()
    assert (made.kind, made.lane, made.made_by) == ("close_lane", "short", "otto")
    assert made.until > timezone.now() + timedelta(minutes=29)


def test_rules_are_changed_and_set_back(operator: User, sign_in: SignIn) -> None:
    browser = sign_in(operator)
    form = {
        "enter_yellow": "0.5", "enter_orange": "0.8", "enter_red": "0.9", "enter_hold_s": "5", "exit_hold_s": "60",
    }  # fmt: skip

    browser.post("/alerts/rules/kv_in_use/", form)
    assert RuleChange.objects.get().settings["enter"]["yellow"] == 0.5
    assert "changed here" in text_of(browser, "/alerts/rules/")

    refused = browser.post("/alerts/rules/kv_in_use/", form | {"enter_red": "0.1"})
    assert refused.status_code == 422
    browser.post("/alerts/rules/kv_in_use/", {"back_to_default": "yes"})
    assert RuleChange.objects.count() == 0


def test_a_webhook_is_made_tried_switched_and_removed(admin: User, operator: User, sign_in: SignIn) -> None:
    form = {"name": "pager", "url": "https://pager.example.org/hook/secret-part", "least_level": "orange"}
    assert sign_in(operator).post("/alerts/webhooks/new/", form).status_code == 403
    browser = sign_in(admin)

    made = browser.post("/alerts/webhooks/new/", form)
    assert "shown this once" in made.content.decode()
    browser.post("/alerts/webhooks/pager/try/")
    assert "1 notice waits" in text_of(browser, "/alerts/")
    browser.post("/alerts/webhooks/pager/switch/", {"enabled": "no"})
    assert not Webhook.objects.get().enabled
    assert "secret-part" not in text_of(sign_in(operator), "/alerts/")
    assert not AuditEntry.objects.filter(details__icontains="secret-part").exists()
    browser.post("/alerts/webhooks/pager/remove/")

    assert Webhook.objects.count() == 0


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a.example", "http://user@a.example/", "http://", "x"]
)
def test_a_url_that_no_notice_may_go_to_is_refused(url: str, admin: User, sign_in: SignIn) -> None:
    answer = sign_in(admin).post("/alerts/webhooks/new/", {"name": "pager", "url": url, "least_level": "red"})

    assert answer.status_code == 422
    assert Webhook.objects.count() == 0


def test_hostile_text_is_shown_as_text(slo: Slo, operator: User, sign_in: SignIn) -> None:
    hostile = create_slo("smollm2", SloWish(label=HOSTILE), actor=ACTOR, now=timezone.now())
    alert = make_alert(
        hostile, subject=HOSTILE, lane=HOSTILE, acknowledged_by=HOSTILE, acknowledged_at=timezone.now()
    )
    restrict(
        "smollm2",
        RestrictionWish("no_long", reason=HOSTILE),
        actor=Actor(HOSTILE, "test"),
        now=timezone.now(),
    )

    for path in (
        "/slos/",
        f"/slos/{hostile.pk}/",
        "/alerts/",
        f"/alerts/{alert.pk}/",
        "/models/smollm2/control/",
    ):
        page = text_of(sign_in(operator), path)
        assert "<img src=x" not in page


def test_many_slos_and_alerts_cost_a_fixed_number_of_queries(
    slo: Slo, viewer: User, sign_in: SignIn, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        made = create_slo("smollm2", SloWish(label=f"label-{number}"), actor=ACTOR, now=timezone.now())
        make_alert(made, subject=f"subject-{number}")
    browser = sign_in(viewer)

    for path in ("/slos/", "/alerts/"):
        with django_assert_max_num_queries(16):
            browser.get(path)


def test_without_alerts_the_page_says_what_that_means(
    routing_state: None, viewer: User, sign_in: SignIn
) -> None:
    make_routing_state()

    page = text_of(sign_in(viewer), "/alerts/")

    assert "No open alert" in page
    assert "nothing can be judged" in page
