"""A profile from the wish to its result, with a profiler of the test's in the engine's place."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from pool.domain.liveness import Hung
from pool.domain.step_profiles import MAX_RESULT_BYTES
from pool.models import Intent, Replica, Runtime, StepProfile
from pool.services.step_profiles import ask_profile
from tests.life.box import Box
from tests.pool.services.world import ACTOR
from workers import watcher as watching
from workers.engines.profiling import ProfileFailed
from workers.engines.trace import FlameNode, KernelTime, Profile
from workers.engines.trace import StepProfile as SeenStep
from workers.step_profiling import describe_profile

PARTS = {"attention": 0.001, "matrix_products": 0.002, "copies": 0.0, "other": 0.0}
FLAME = FlameNode("steps", 0.003, {"aten::mm": FlameNode("aten::mm", 0.003)})
PROFILE = Profile(
    on_device=False,
    steps=(SeenStep(0, 0, 1, 1, 0.004, PARTS, None, 0),),
    kernels=(KernelTime("aten::mm", "matrix_products", 0.003, 12),),
    flame=FLAME,
)


class FakeProfiler:
    """In the place of profile_engine: holds until it is let go, then gives a profile or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.calls: list[dict[str, Any]] = []
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self, address: str, **values: Any) -> Profile:
        self.calls.append({"address": address} | values)
        self.begun.set()
        assert self.let_go.wait(20)
        if self.failure is not None:
            raise self.failure
        return PROFILE


def start(box: Box, profiler: FakeProfiler, *, held: bool = False) -> Replica:
    box.scale(1)
    (row,) = box.run_until_ready()
    Runtime.objects.update(kind="vllm")
    box.supervisor.profiler.take = profiler
    if not held:
        profiler.let_go.set()
    return row


def phase_of(run: StepProfile) -> str:
    run.refresh_from_db()
    return run.phase


def test_a_wish_becomes_a_stored_profile(box: Box) -> None:
    profiler = FakeProfiler()
    row = start(box, profiler)

    run = ask_profile(row.pk, steps=9, actor=ACTOR)
    box.run_until(lambda: phase_of(run) == "done")
    box.run_until(lambda: Intent.objects.get(action="profile").phase == "done")

    [call] = profiler.calls
    assert (call["address"], call["steps"]) == (row.address, 9)
    assert call["folder"].endswith("/profile")
    assert call["engine_key"]
    assert run.figures == describe_profile(PROFILE)[0]
    assert run.flame == describe_profile(PROFILE)[1]
    assert run.started_at is not None


@pytest.mark.parametrize(
    ("failure", "code"),
    [(ProfileFailed("No step ran."), "profile_failed"), (RuntimeError("boom"), "internal_error")],
)
def test_a_profile_that_fails_is_told_with_its_reason_and_not_tried_again(
    box: Box, failure: Exception, code: str
) -> None:
    profiler = FakeProfiler(failure)
    run = ask_profile(start(box, profiler).pk, actor=ACTOR)

    box.run_until(lambda: Intent.objects.get(action="profile").phase == "failed")
    for _ in range(3):
        box.step()

    assert phase_of(run) == "failed"
    assert run.reason_code == code
    assert len(profiler.calls) == 1
    assert Replica.objects.get().phase == "ready"


def test_while_it_stands_still_it_is_not_held_for_hung(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look finds a hang as soon as the watcher judges at all."""
    profiler = FakeProfiler()
    row = start(box, profiler, held=True)
    run = ask_profile(row.pk, actor=ACTOR)
    box.run_until(profiler.begun.is_set)
    found = Hung("nothing moves", timedelta(seconds=9))
    monkeypatch.setattr(watching, "next_action", lambda *args, **kwargs: found)
    watcher = box.supervisor.watchers[(row.pk, 1)]

    load = watcher._read_load()
    assert watcher._judge(row, load, timezone.now())

    assert Replica.objects.get().failure_kind == ""
    profiler.let_go.set()
    box.run_until(lambda: phase_of(run) == "done")
    assert watcher.excused_until is None


def test_a_result_that_comes_after_a_restart_is_dropped(box: Box) -> None:
    profiler = FakeProfiler()
    row = start(box, profiler, held=True)
    run = ask_profile(row.pk, actor=ACTOR)
    box.run_until(profiler.begun.is_set)

    Replica.objects.filter(pk=row.pk).update(generation=2)
    profiler.let_go.set()
    box.run_until(lambda: not box.supervisor.profiler.busy.locked())

    assert phase_of(run) == "running"
    assert run.figures is None
    assert Intent.objects.get(action="profile").result == "too_late"


def test_the_workers_successor_takes_over_what_was_running(box: Box) -> None:
    first = FakeProfiler()
    row = start(box, first, held=True)
    run = ask_profile(row.pk, actor=ACTOR)
    box.run_until(first.begun.is_set)

    box.kill_worker()
    box.start_worker()
    second = FakeProfiler()
    second.let_go.set()
    box.supervisor.profiler.take = second
    box.run_until(lambda: phase_of(run) == "done")

    assert len(second.calls) == 1
    first.let_go.set()


def test_each_operation_of_a_flame_graph_has_its_part() -> None:
    inner = {"aten::copy_": FlameNode("aten::copy_", 0.001), "aten::add": FlameNode("aten::add", 0.001)}
    outer = {
        "aten::linear": FlameNode("aten::linear", 0.003, inner),
        "aten::copy_": FlameNode("aten::copy_", 0.001),
    }
    profile = Profile(False, PROFILE.steps, PROFILE.kernels, FlameNode("steps", 0.004, outer))

    _, flame = describe_profile(profile)

    assert flame["part"] == "other"
    assert [(child["name"], child["part"]) for child in flame["children"]] == [
        ("aten::linear", "matrix_products"),
        ("aten::copy_", "copies"),
    ]
    assert {child["part"] for child in flame["children"][0]["children"]} == {"matrix_products"}


def test_a_flame_graph_that_is_too_large_loses_its_tips() -> None:
    def branch(depth: int) -> FlameNode:
        width = 3 if depth else 0
        children = {f"{'x' * 110}{place}": branch(depth - 1) for place in range(width)}
        return FlameNode("x" * 110, 1.0, children)

    wide = Profile(False, PROFILE.steps, PROFILE.kernels, branch(8))

    figures, flame = describe_profile(wide)

    assert figures["steps"]
    assert 1000 < len(str(flame)) < MAX_RESULT_BYTES
    assert flame["children"]
