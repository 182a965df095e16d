"""A profiler's run on a real vLLM, which here also runs with the scheduler of asynchronous engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pool.domain.step_profiles import MAX_RESULT_BYTES
from tests.contracts.conftest import KEY, Running
from tests.workers.plugin.real_engine import SETTINGS, complete, open_fleet, open_ring
from workers.engines.profiling import ProfileFailed, profile_engine, profile_folder
from workers.engines.trace import ATTENTION, COPIES, MATRIX
from workers.step_profiling import describe_profile

pytestmark = pytest.mark.engine

ASYNC = ("--scheduler-cls", "vllm.v1.core.sched.async_scheduler.AsyncScheduler")


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with open_fleet(flags=ASYNC) as fleet:
        yield fleet.start(**SETTINGS)


def test_steps_of_the_asynchronous_scheduler_are_followed(engine: Running) -> None:
    reader = open_ring(engine)

    complete(engine, "Hello", tokens=12, request_id="req-async")

    assert reader.missing == ""
    steps = reader.read_steps()
    assert [step.kind for step in steps] == ["prefill", *["decode"] * 11]
    assert [request.request_id for request in reader.read_finished()] == ["req-async"]
    reader.close()


def test_a_profile_tells_where_the_steps_time_goes(engine: Running) -> None:
    folder = profile_folder(engine.spec)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, engine, "Go on and on", tokens=60)
        profile = profile_engine(engine.address, engine_key=KEY, folder=folder, steps=6, limit_s=60)
        assert answer.result()["usage"]["completion_tokens"] == 60

    assert 6 <= len(profile.steps) <= 8
    assert not profile.on_device
    assert {step.decode_sequences + step.prefill_sequences for step in profile.steps} == {1}
    shares = profile.shares
    assert shares[MATRIX] > 0.1
    assert shares[ATTENTION] > 0
    assert shares[COPIES] > 0
    assert sum(shares.values()) <= 1.0
    assert all(step.launches_s is None for step in profile.steps)
    assert profile.kernels[0].seconds >= profile.kernels[-1].seconds > 0
    assert sum(child.seconds for child in profile.flame.children.values()) <= profile.flame.seconds * 1.001
    assert not list(Path(folder).iterdir())
    figures, flame = describe_profile(profile)
    assert len(json.dumps([figures, flame])) <= MAX_RESULT_BYTES
    assert len(figures["steps"]) == len(profile.steps)
    assert MATRIX in {child["part"] for child in flame["children"]}


def test_without_a_step_there_is_no_profile_and_the_next_one_works(engine: Running) -> None:
    with pytest.raises(ProfileFailed, match="no step|nothing ran"):
        profile_engine(
            engine.address, engine_key=KEY, folder=profile_folder(engine.spec), steps=3, limit_s=0.5
        )

    assert complete(engine, "Still here", tokens=4)["usage"]["completion_tokens"] == 4
