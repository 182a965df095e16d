from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from pool.domain.step_profiles import Lost
from pool.models import AuditEntry, Replica, Runtime, StepProfile
from pool.services.audit import Actor
from pool.services.step_profiles import ask_profile, begin_profile, fail_profile, store_profile
from tests import factories
from tests.pool.services.test_step_profiles import FIGURES, FLAME

SignIn = Callable[[User], Client]
PAGE, TAKE = "/replicas/r1/profile/", "/replicas/r1/profile/take/"
HOSTILE = "<script>alert(1)</script>"
ACTOR = Actor("otto", "page")
BUTTON = 'data-open="dialog-profile" data-show="can_profile">'


@pytest.fixture(autouse=True)
def _pool(routing_state: None) -> None:
    node = factories.make_node()
    factories.make_runtime(node, kind="vllm")
    factories.make_replica(factories.make_release(factories.make_model()), node=node, id="r1")


def take(*, name: str = "aten::mm") -> StepProfile:
    run = ask_profile("r1", actor=ACTOR)
    assert run.intent is not None
    begin_profile(run.intent, now=timezone.now())
    kernels = [FIGURES["kernels"][0] | {"name": name}]
    store_profile(run.pk, figures=FIGURES | {"kernels": kernels}, flame=FLAME, now=timezone.now())
    return run


def test_before_the_first_profile_the_page_says_so(operator: User, sign_in: SignIn) -> None:
    page = sign_in(operator).get(PAGE).content.decode()

    assert "This replica has never been profiled" in page
    assert "stands still for about a second" in page
    assert BUTTON in page


def test_a_viewer_reads_and_may_not_ask(viewer: User, sign_in: SignIn) -> None:
    client = sign_in(viewer)

    assert "dialog-profile" not in client.get(PAGE).content.decode()
    assert client.post(TAKE, {"steps": "5"}).status_code == 403
    assert not StepProfile.objects.exists()


def test_nobody_and_strangers_see_nothing(stranger: User, sign_in: SignIn) -> None:
    assert Client().get(PAGE).status_code == 302
    assert sign_in(stranger).get(PAGE).status_code == 403


def test_an_operators_wish_waits_and_hides_the_button(operator: User, sign_in: SignIn) -> None:
    page = sign_in(operator).post(TAKE, {"steps": "5"}, follow=True).content.decode()

    assert StepProfile.objects.get().steps_asked == 5
    assert AuditEntry.objects.get(action="replica.profile").actor == operator.get_username()
    assert "takes one profile at a time" in page
    assert BUTTON not in page


@pytest.mark.parametrize("steps", ["0", "51", "many", ""])
def test_steps_that_cannot_be_are_refused(operator: User, sign_in: SignIn, steps: str) -> None:
    page = sign_in(operator).post(TAKE, {"steps": steps}, follow=True).content.decode()

    assert "A profile takes 1 to 50 steps." in page
    assert not StepProfile.objects.exists()


def test_a_refusal_is_told(operator: User, sign_in: SignIn) -> None:
    client = sign_in(operator)
    client.post(TAKE, {"steps": "5"})

    assert "is waiting already" in client.post(TAKE, {"steps": "5"}, follow=True).content.decode()


def test_a_running_one_says_what_happens(viewer: User, sign_in: SignIn) -> None:
    run = ask_profile("r1", steps=12, actor=ACTOR)
    assert run.intent is not None
    begin_profile(run.intent, now=timezone.now())

    assert "12 steps are followed" in sign_in(viewer).get(PAGE).content.decode()


def test_a_failed_one_tells_its_reason_beside_the_older_result(viewer: User, sign_in: SignIn) -> None:
    take()
    fail_profile(
        ask_profile("r1", actor=ACTOR).pk, Lost("profile_failed", "No step ran."), now=timezone.now()
    )

    page = sign_in(viewer).get(PAGE).content.decode()

    assert "No step ran." in page
    assert "aten::mm" in page


def test_a_result_has_shares_times_and_its_generation(viewer: User, sign_in: SignIn) -> None:
    run = take()

    page = sign_in(viewer).get(PAGE).content.decode()

    assert f'data-flame-id="{run.pk}"' in page
    assert (
        '<td class="num strong" data-cell="share">50 %</td><td class="num" data-cell="time">5 ms</td>' in page
    )
    assert 'data-cell="result_generation">1<' in page
    assert 'data-show="is_old" hidden' in page


def test_a_result_of_an_older_generation_is_marked(viewer: User, sign_in: SignIn) -> None:
    take()
    Replica.objects.update(generation=2)

    assert 'data-show="is_old">' in sign_in(viewer).get(PAGE).content.decode()


def test_a_simulated_engine_says_why_there_is_nothing(operator: User, sign_in: SignIn) -> None:
    Runtime.objects.update(kind="sim")

    page = sign_in(operator).get(PAGE).content.decode()

    assert "A simulated engine computes nothing" in page
    assert BUTTON not in page


def test_a_hostile_kernel_is_text(viewer: User, sign_in: SignIn) -> None:
    """FC-55"""
    take(name=HOSTILE)

    assert HOSTILE not in sign_in(viewer).get(PAGE).content.decode()


def test_an_unknown_replica_is_not_found(operator: User, sign_in: SignIn) -> None:
    client = sign_in(operator)

    assert client.get("/replicas/nosuch/profile/").status_code == 404
    assert client.post("/replicas/nosuch/profile/take/", {"steps": "5"}).status_code == 404
