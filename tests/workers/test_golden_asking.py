"""Golden prompts asked of simulated engines, sound and broken ones, over their sockets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.utils import timezone

from pool.domain.rollout import Judgement
from pool.models import GoldenPrompt, GoldenRun, Intent, Model, Replica, Rollout, RolloutEvent
from pool.ports import EngineSpec
from pool.queries.golden import list_hot_conversations
from pool.services.audit import loop_actor
from pool.services.golden import ask_golden, read_golden
from pool.services.golden_prompts import GoldenWish, create_prompt, record_answers
from tests import factories
from workers import patterns
from workers.engines.http import EngineUnreachable, call
from workers.engines.sim import REHEARSALS
from workers.golden_asking import GoldenAsker
from workers.warmup import WarmUpLane, WarmUpRecipe, WarmUpTarget, warm_up

ACTOR = loop_actor("test")
QUICK = {"step_s": 0.001, "block_size": 16}
LONG = (
    ("system", "Answer in one sentence. " * 20),
    ("user", "Hi"),
    ("assistant", "Hello."),
    ("user", "And now?"),
)

Start = Callable[..., str]


@pytest.fixture(autouse=True)
def _one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's transaction must outlive what a thread of its own would close."""
    monkeypatch.setattr("workers.golden_asking.close_old_connections", lambda: None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts simulated engines; returns the address of each, once it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def make(**settings: Any) -> str:
        path = tmp_path / f"{len(running)}.sock"
        argv = [sys.executable, "-m", "workers.engines.sim_server", "--served-model-name", "smollm2"]
        argv += ["--uds", str(path), "--settings", json.dumps(QUICK | settings)]
        running.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
        address = f"unix:{path}"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                call(address, "/health", engine_key="")
            except EngineUnreachable:
                time.sleep(0.05)
            else:
                return address
        raise AssertionError("the simulated engine did not come up")

    yield make
    for process in running:
        process.kill()
        process.wait()


def make_rollout(stable: str, candidate: str) -> Rollout:
    """Release 1 answers at `stable`, release 2 at `candidate`."""
    model = factories.make_model()
    node = factories.make_node()
    releases = [factories.make_release(model, number=number) for number in (1, 2)]
    for release, address in zip(releases, (stable, candidate), strict=True):
        factories.make_replica(release, node=node, id=f"r{release.number}", address=address)
    factories.make_plan(model)
    return Rollout.objects.create(
        id="ro1", model=model, candidate=releases[1], stable=releases[0], base_plan=1, phase="warming",
        steps=[{"weight": 10}],
    )  # fmt: skip


def keep(name: str, match: str = "exact", **values: Any) -> None:
    messages = values.pop("messages", (("user", f"What is {name}?"),))
    create_prompt("smollm2", GoldenWish(name, messages, match=match, **values), actor=ACTOR)


def carry_out() -> None:
    """What the node's worker does in one pass."""

    def make_spec(replica: Replica) -> EngineSpec:
        spec = SimpleNamespace(address=replica.address, served_model_name="smollm2", engine_key="")
        return cast(EngineSpec, spec)

    asker = GoldenAsker(uuid.uuid4(), make_spec)
    for intent in Intent.objects.filter(action="golden", phase="pending").order_by("id"):
        asker.ask_all(intent)


def ask(rollout: Rollout) -> tuple[Judgement, str]:
    ask_golden(rollout, "before", timezone.now())
    carry_out()
    return read_golden(rollout)


@pytest.mark.django_db
def test_fc70_garbage_is_blocked_though_it_is_faster(start: Start) -> None:
    rollout = make_rollout(start(), start(**REHEARSALS["garbage"], garbage_from_tokens=100))
    keep("short")
    keep("long", messages=LONG)
    keep("likely", "logprob", messages=LONG, tolerance=0.1)
    record_answers("smollm2", actor=ACTOR, now=timezone.now())
    carry_out()

    judgement, text = ask(rollout)

    assert judgement is Judgement.WORSE
    assert text.startswith("1 of 3 golden prompts match; likely, long differ.")
    assert RolloutEvent.objects.get(kind="golden").code == "worse"
    rollout.refresh_from_db()
    assert rollout.golden["before"]["differing"] == ["likely", "long"]


@pytest.mark.django_db
def test_a_sound_candidate_passes_and_is_asked_once_a_stage(start: Start) -> None:
    rollout = make_rollout(start(), start())
    keep("words", "contains", expected="simulated")
    keep("pattern", "regex", expected=r"answer \w+ simulated")
    keep("likely", "logprob", tolerance=0.1)
    record_answers("smollm2", actor=ACTOR, now=timezone.now())
    carry_out()

    assert ask(rollout) == (Judgement.NOT_WORSE, "3 of 3 golden prompts match")
    assert ask(rollout)[0] is Judgement.NOT_WORSE
    assert GoldenRun.objects.filter(stage="before").count() == 1
    likely = GoldenPrompt.objects.get(name="likely")
    assert likely.recorded_from == 1
    assert likely.expected_logprob == pytest.approx(-0.25)


@pytest.mark.django_db
def test_nothing_passes_that_was_not_compared(start: Start) -> None:
    rollout = make_rollout(start(), start())
    keep("unrecorded")

    before = read_golden(rollout)
    judgement, text = ask(rollout)

    assert before == (Judgement.NOT_YET, "the golden prompts are asked")
    assert judgement is Judgement.NOT_YET
    assert "record it from the stable release" in text
    GoldenPrompt.objects.all().delete()
    assert read_golden(rollout) == (Judgement.NOT_WORSE, "no golden prompts: no answer was compared")


@pytest.mark.django_db
def test_an_engine_that_does_not_answer_is_asked_again_a_few_times(start: Start) -> None:
    rollout = make_rollout(start(), "unix:/nowhere.sock")
    keep("capital", expected="Paris")
    now = timezone.now()

    asked = []
    for number in range(5):
        asked.append(ask_golden(rollout, "before", now + timedelta(minutes=number)))
        carry_out()

    assert asked == [1, 1, 1, 0, 0]
    judgement, text = read_golden(rollout)
    assert judgement is Judgement.NOT_YET
    assert "3 of 3 tries" in text


@pytest.mark.django_db
def test_an_engine_that_fails_requests_differs(start: Start) -> None:
    rollout = make_rollout(start(), start(error_ratio=1.0, sound_requests=0))
    keep("capital", expected="Paris")

    judgement, text = ask(rollout)

    assert judgement is Judgement.WORSE
    assert "The engine answered 500: This engine rehearses failures." in text


@pytest.mark.django_db
def test_a_replica_that_left_is_not_waited_for(start: Start) -> None:
    rollout = make_rollout(start(), start())
    keep("capital", "contains", expected="simulated")
    now = timezone.now()
    ask_golden(rollout, "before", now)
    Replica.objects.filter(pk="r2").update(generation=2)

    assert ask_golden(rollout, "before", now + timedelta(seconds=1)) == 0  # a pause after the failure
    assert ask_golden(rollout, "before", now + timedelta(minutes=1)) == 1
    carry_out()

    assert read_golden(rollout)[0] is Judgement.NOT_WORSE


@pytest.mark.django_db
def test_fc09_hot_prefixes_are_cached_before_the_first_user(start: Start) -> None:
    make_rollout(start(), start())
    keep("long", messages=LONG)
    keep("hot", messages=LONG[1:], hot=True)
    keep("plain")
    hot = list_hot_conversations(Model.objects.get().pk, most=20)
    address = start()

    figures = warm_up(
        WarmUpTarget(address, "smollm2", ""), WarmUpRecipe(lanes=(WarmUpLane("all", 100),), hot=hot)
    )

    assert (figures.hot_prefixes, figures.hot_refused, figures.reason) == (2, 0, "")
    body = {"messages": [{"role": role, "content": text} for role, text in LONG], "max_tokens": 1}
    usage = call(address, "/v1/chat/completions", engine_key="", body=body, timeout_s=30.0).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 96


def test_a_pattern_that_never_ends_is_given_up() -> None:
    assert patterns.search(r"(a+)+$", "a" * 64 + "b", limit_s=1.0) is None
    assert patterns.search("b$", "ab") is True
    assert patterns.search("^b", "ab") is False
