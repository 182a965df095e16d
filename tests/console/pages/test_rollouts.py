"""Pages of rollouts: who may, what is escaped, that buttons tell their consequence, and that a form loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from pool.models import AuditEntry, Plan, Rollout, RolloutEvent
from tests import factories
from tests.browser.seed_rollouts import MODEL, seed_rollouts

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
NEW = f"/models/{MODEL}/rollouts/new/"
ACTIONS = ("pause", "resume", "promote", "rollback", "fence")


@pytest.fixture
def viewer_client(viewer: User, sign_in: SignIn) -> Client:
    return sign_in(viewer)


@pytest.fixture
def operator_client(operator: User, sign_in: SignIn) -> Client:
    return sign_in(operator)


@pytest.fixture
def running(routing_state: None) -> Rollout:
    return seed_rollouts()[0]


@pytest.fixture
def idle(running: Rollout) -> Rollout:
    """The model's rollout has ended: another may begin."""
    Rollout.objects.filter(pk=running.pk).update(phase="rolled_back", ended_at=factories.T0)
    factories.make_sim_node()
    return running


def text_of(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


def test_a_viewer_reads_every_page_and_no_button(viewer_client: Client, running: Rollout) -> None:
    page = text_of(viewer_client, f"/rollouts/{running.pk}/")
    rows = text_of(viewer_client, f"/models/{MODEL}/rollouts/")

    assert "step 2 of 4" in page
    assert "dialog-back" not in page
    assert running.pk in rows
    assert NEW not in rows


def test_gates_have_the_names_that_the_form_gives_them(viewer_client: Client, running: Rollout) -> None:
    running.refresh_from_db()
    gate = running.verdict["gates"][1] | {"text": "ttft: not yet; about 400 more requests (4 min)"}
    Rollout.objects.filter(pk=running.pk).update(verdict=running.verdict | {"gates": [gate]})

    page = text_of(viewer_client, f"/rollouts/{running.pk}/")

    assert '<span class="strong" data-cell="title">Time to the first token</span>' in page
    assert 'data-cell="text">not yet; about 400 more requests (4 min)</div>' in page


@pytest.mark.parametrize("action", ACTIONS)
def test_a_viewer_does_nothing_to_a_rollout(viewer_client: Client, running: Rollout, action: str) -> None:
    before = AuditEntry.objects.count()

    assert viewer_client.post(f"/rollouts/{running.pk}/{action}/").status_code == 403

    running.refresh_from_db()
    assert running.phase == "stepping"
    assert AuditEntry.objects.count() == before


def test_a_viewer_opens_no_start_form(viewer_client: Client, running: Rollout) -> None:
    assert viewer_client.get(NEW).status_code == 403
    assert viewer_client.post(NEW).status_code == 403


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_is_a_post_with_a_token_on_a_rollout_that_exists(
    operator: User, operator_client: Client, running: Rollout, action: str
) -> None:
    careless = Client(enforce_csrf_checks=True)
    careless.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    assert operator_client.get(f"/rollouts/{running.pk}/{action}/").status_code == 405
    assert careless.post(f"/rollouts/{running.pk}/{action}/").status_code == 403
    assert operator_client.post(f"/rollouts/nobody/{action}/").status_code == 404


def test_what_others_wrote_is_escaped(operator_client: Client, running: Rollout) -> None:
    hostile = "<script>alert(1)</script>"
    Rollout.objects.filter(pk=running.pk).update(
        reason_text=hostile,
        next_action=hostile,
        created_by=hostile,
        verdict=running.verdict | {"text": hostile},
    )
    RolloutEvent.objects.create(rollout=running, kind="operator", text=hostile, actor=hostile)

    for path in (f"/rollouts/{running.pk}/", f"/models/{MODEL}/rollouts/"):
        page = text_of(operator_client, path)
        assert hostile not in page
        assert "&lt;script&gt;alert(1)" in page


def test_the_confirmation_names_the_model_and_what_will_happen(
    operator_client: Client, running: Rollout
) -> None:
    page = text_of(operator_client, f"/rollouts/{running.pk}/")

    assert f"Take the rollout of {MODEL} back?" in page
    assert f"Plan 1 of {MODEL} comes back in force: release 2 gets 0 %." in page
    assert f"Give the candidate all traffic of {MODEL}?" in page


def test_one_click_takes_the_rollout_back_and_a_second_changes_nothing(
    operator_client: Client, running: Rollout
) -> None:
    path = f"/rollouts/{running.pk}/rollback/"

    first = operator_client.post(path, {"streams": "end", "end_after_tokens": "64"}, follow=True)
    second = operator_client.post(path, follow=True)

    running.refresh_from_db()
    assert (running.phase, running.streams) == ("rolling_back", {"end_after_tokens": 64})
    assert "rolling back" in first.content.decode()
    assert "Nothing was changed." in second.content.decode()
    assert Plan.objects.filter(model=running.model, rollback_of=1).count() == 1


def test_streams_finish_unless_their_end_was_chosen(operator_client: Client, running: Rollout) -> None:
    typed = {"streams": "finish", "end_after_tokens": "64"}

    page = operator_client.post(f"/rollouts/{running.pk}/rollback/", typed, follow=True).content.decode()

    running.refresh_from_db()
    assert (running.phase, running.streams) == ("rolling_back", {})
    assert "Streams that run there finish." in page


@pytest.mark.parametrize("typed", ["", "-1", "many", "9" * 12, "100001"])
def test_a_wrong_number_of_tokens_takes_nothing_back(
    operator_client: Client, running: Rollout, typed: str
) -> None:
    answer = operator_client.post(
        f"/rollouts/{running.pk}/rollback/", {"streams": "end", "end_after_tokens": typed}, follow=True
    )

    running.refresh_from_db()
    assert running.phase == "stepping"
    assert 'data-state="bad"' in answer.content.decode()


def test_an_end_says_what_began_it(viewer_client: Client, running: Rollout) -> None:
    text = "errors: 12 of 40 of the candidate's requests, the limit is 5.0% Plan 4 is in force."
    RolloutEvent.objects.create(rollout=running, kind="guard", code="limit_broken", text=text)
    Rollout.objects.filter(pk=running.pk).update(
        phase="rolled_back", ended_at=factories.T0, reason_text="Every gateway serves the plan."
    )

    page = text_of(viewer_client, f"/rollouts/{running.pk}/")

    assert f"Taken back: release 1 has the traffic of {MODEL} again" in page
    assert "12 of 40 of the candidate&#x27;s requests" in page
    assert "Every gateway serves the plan." in page
    assert "taken back here" in page


@pytest.mark.parametrize(
    ("phase", "words"), [("promoted", "Release 2 is promoted"), ("failed", "could not be proven complete")]
)
def test_other_ends_are_told_in_words(
    viewer_client: Client, running: Rollout, phase: str, words: str
) -> None:
    Rollout.objects.filter(pk=running.pk).update(phase=phase, ended_at=factories.T0)

    assert words in text_of(viewer_client, f"/rollouts/{running.pk}/")


def test_a_step_beyond_its_time_says_who_has_to_act(viewer_client: Client, running: Rollout) -> None:
    Rollout.objects.filter(pk=running.pk).update(deadline_at=factories.T0)

    page = text_of(viewer_client, f"/rollouts/{running.pk}/")

    assert "This step was to end by 2026-11-02 08:00:00 UTC" in page
    assert "promote it, or take it back" in page


def test_a_start_that_is_refused_keeps_all_that_was_typed(operator_client: Client, idle: Rollout) -> None:
    typed: dict[str, Any] = {
        "candidate": "3", "steps": "50 10 5\n20 10 5", "hold_min": "7", "comment": "A careful <try>",
    }  # fmt: skip

    answer = operator_client.post(NEW, typed)

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "50 10 5\n20 10 5" in page
    assert "A careful &lt;try&gt;" in page
    assert 'value="7"' in page
    assert "larger than the one before" in page
    assert Rollout.objects.filter(model__name=MODEL).count() == 1


def test_without_a_rollout_the_list_says_what_one_is(viewer_client: Client, routing_state: None) -> None:
    factories.make_pool()

    page = text_of(viewer_client, "/models/model-0/rollouts/")

    assert "No rollout yet" in page
    assert viewer_client.get("/models/nobody/rollouts/").status_code == 404
    assert viewer_client.get("/rollouts/nobody/").status_code == 404


USUAL: dict[str, Any] = {"candidate": "3", "steps": "20 30 30\n50 30 30", "hold_min": "2", "comment": ""}


def test_the_form_tells_what_a_start_would_do_before_it_is_asked(
    operator_client: Client, idle: Rollout
) -> None:
    page = text_of(operator_client, f"{NEW}?candidate=3")

    assert "Release 3 gets 1 replica. It loads and warms up;" in page
    assert "5 % of new requests for 5 min at least, and until it answered 200 requests" in page
    assert f"All traffic of {MODEL} goes to release 3 for 30 min" in page
    assert "puts plan 3 back: release 2: 25 %, release 1: 75 %." in page
    assert Rollout.objects.filter(model=idle.model).count() == 1


def test_a_preview_follows_what_is_typed_and_writes_nothing(operator_client: Client, idle: Rollout) -> None:
    path = f"/models/{MODEL}/rollouts/preview/"
    before = AuditEntry.objects.count()

    typed = USUAL | {"replicas": "2", "lane_by_lane": "on", "ttft-dry_run": "on", "ttft-margin_ratio": "30"}
    told = operator_client.post(path, typed).content.decode()
    refused = operator_client.post(path, USUAL | {"errors-limit_ratio": "200"}).content.decode()

    assert "Release 3 gets 2 replicas. They load and warm up;" in told
    assert "short → mid → long" in told
    assert "Only reported, never acted on: Time to the first token." in told
    assert "Failed requests: Between 0.01 and 95 %." in refused
    assert AuditEntry.objects.count() == before
    assert Rollout.objects.filter(model=idle.model).count() == 1


def test_without_a_hold_the_preview_says_that_it_is_promoted_at_once(
    operator_client: Client, idle: Rollout
) -> None:
    told = operator_client.post(f"/models/{MODEL}/rollouts/preview/", USUAL | {"hold_min": "0"})

    assert f"All traffic of {MODEL} goes to release 3, which is promoted at once" in told.content.decode()


def test_a_viewer_sees_no_preview(viewer_client: Client, idle: Rollout) -> None:
    assert viewer_client.post(f"/models/{MODEL}/rollouts/preview/", USUAL).status_code == 403


def test_a_start_keeps_of_the_gates_what_differs_from_the_usual(
    operator_client: Client, idle: Rollout
) -> None:
    typed = USUAL | {
        "errors-margin_ratio": "25", "errors-margin_points": "20", "errors-limit_ratio": "",
        "ttft-margin_ratio": "30", "ttft-limit_s": "1.5", "shape-margin_ratio": "", "shape-dry_run": "on",
    }  # fmt: skip

    answer = operator_client.post(NEW, typed)

    started = Rollout.objects.exclude(pk=idle.pk).get(model=idle.model)
    assert answer.status_code == 302
    assert started.gates == {
        "errors": {"margin_points": 0.2, "limit_ratio": None},
        "ttft": {"margin_ratio": 0.3, "limit_s": 1.5},
        "shape": {"dry_run": True},
    }
    assert (started.hold_s, started.scales) == (120, [["", 1]])


def test_without_a_plan_or_a_free_release_the_form_says_what_is_missing(
    operator_client: Client, routing_state: None
) -> None:
    model = factories.make_model("bare")
    factories.make_release(model)

    assert "No plan is in force" in text_of(operator_client, "/models/bare/rollouts/new/")

    factories.make_plan(model, weights={"1": 100})
    assert "No release is free to be rolled out" in text_of(operator_client, "/models/bare/rollouts/new/")
