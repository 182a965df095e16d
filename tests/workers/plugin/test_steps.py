"""What the hook writes of each step, against a fake scheduler. The plug-in is loaded from its source."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers.plugin.fake_scheduler import Request, Scheduler, SlidingWindowManager, make_event
from workers.engine_ring import RingReader

PLUGIN = Path(__file__).parents[3] / "workers" / "plugin"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(PLUGIN))
    before = {name for name in sys.modules if name.startswith("sluice_engine")}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("sluice_engine.hook")
    for name in [name for name in sys.modules if name.startswith("sluice_engine")]:
        del sys.modules[name]


class Bench:
    """A followed scheduler and a reader of its ring."""

    def __init__(self, hook: Any, folder: Path, scheduler: Scheduler | None = None) -> None:
        self.scheduler = scheduler or Scheduler()
        self.follower = hook.follow(self.scheduler, str(folder / "steps.ring"))
        self.reader = RingReader(str(folder / "steps.ring"), from_start=True)

    def add(self, *names: str, prompt: int = 10, cached: int = 0) -> None:
        for name in names:
            stats = SimpleNamespace(num_cached_tokens=cached)
            self.scheduler.requests[name] = Request(name, num_prompt_tokens=prompt, prefill_stats=stats)

    def step(self, ends: tuple[str, ...] = (), **tokens: int) -> None:
        self.scheduler.plan.append(tokens)
        output = self.scheduler.schedule()
        self.scheduler.update_from_output(output, ends)


@pytest.fixture
def bench(hook: Any, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(hook, tmp_path)
    yield made
    made.reader.close()


def test_steps_are_told_apart_by_what_they_compute(bench: Bench) -> None:
    bench.add("a", "b")
    bench.step(a=10)
    bench.step(a=1)
    bench.step(a=1, b=4)
    bench.step(a=1, b=6)
    bench.step(a=1, b=1)

    steps = bench.reader.read_steps()

    assert [step.kind for step in steps] == ["prefill", "decode", "mixed", "mixed", "decode"]
    assert [(step.prefill_tokens, step.decode_tokens) for step in steps] == [
        (10, 0),
        (0, 1),
        (4, 1),
        (6, 1),
        (0, 2),
    ]
    assert [(step.prefill_sequences, step.decode_sequences) for step in steps][2:] == [(1, 1), (1, 1), (0, 2)]
    assert [step.running for step in steps] == [1, 1, 2, 2, 2]


def test_a_step_of_nothing_is_none_but_what_runs_is_told(bench: Bench) -> None:
    bench.add("a")
    bench.scheduler.hold("a", 1, 2)
    bench.step(a=10)
    bench.scheduler.finish("a", "FINISHED_ABORTED")
    bench.step()

    assert len(bench.reader.read_steps()) == 1
    newest = bench.reader.read_newest_step()
    assert newest is not None
    assert (newest.sequence, newest.running, newest.used_blocks) == (1, 0, 0)


def test_waiting_preempted_and_cached_are_the_schedulers(bench: Bench) -> None:
    bench.add("a", prompt=40, cached=32)
    bench.scheduler.waiting, bench.scheduler.preempted = 3, {"x", "y"}
    bench.step(a=8)

    (step,) = bench.reader.read_steps()

    assert (step.waiting, step.preempted, step.cached_tokens) == (3, 2, 32)


def test_steps_under_way_at_once_are_kept_apart_and_add_up(bench: Bench) -> None:
    bench.add("a", "b")
    bench.scheduler.plan = [{"a": 10}, {"b": 10}]
    first, second = bench.scheduler.schedule(), bench.scheduler.schedule()
    assert bench.reader.in_step_s() is not None
    bench.scheduler.update_from_output(first)
    assert bench.reader.in_step_s() is not None
    bench.scheduler.update_from_output(second)

    one, two = bench.reader.read_steps()

    assert (one.prefill_sequences, two.prefill_sequences) == (1, 1)
    assert bench.reader.in_step_s() is None
    assert two.busy_s < two.schedule_s + two.execute_s + two.update_s
    assert two.busy_s == pytest.approx(two.at_s - one.at_s, abs=2e-6)


def test_a_finished_request_has_the_times_of_its_steps(bench: Bench) -> None:
    bench.add("a")
    bench.step(a=10)
    bench.step(a=1)
    assert bench.reader.read_finished() == []
    bench.step(ends=("a",), a=1)

    (finished,) = bench.reader.read_finished()
    first, _, last = bench.reader.read_steps()

    assert (finished.request_id, finished.outcome, finished.output_tokens) == ("a", "done", 3)
    assert finished.queue_s is None
    assert finished.prefill_s == pytest.approx(first.schedule_s + first.execute_s + first.update_s, abs=2e-6)
    assert finished.decode_s == pytest.approx(last.at_s - first.at_s, abs=2e-6)
    assert last.finished == 1


def test_queue_time_is_from_queued_to_scheduled(bench: Bench) -> None:
    bench.add("a")
    bench.scheduler.requests["a"].events = [make_event("QUEUED", 100.0), make_event("SCHEDULED", 100.25)]
    bench.step(a=10)
    bench.step(ends=("a",), a=1)

    (finished,) = bench.reader.read_finished()

    assert finished.queue_s == pytest.approx(0.25)


def test_an_abort_before_the_first_token_has_no_prefill_time(bench: Bench) -> None:
    bench.add("a", prompt=100)
    bench.step(a=10)
    bench.scheduler.finish("a", "FINISHED_ABORTED")
    bench.step()

    (finished,) = bench.reader.read_finished()

    assert (finished.outcome, finished.prefill_s, finished.decode_s) == ("aborted", None, None)


def test_the_map_tells_states_owners_and_tails(bench: Bench) -> None:
    bench.add("a", "b", prompt=20)
    bench.scheduler.hold("a", 1, 2)
    bench.scheduler.hold("b", 1, 5)
    bench.scheduler.pool.blocks[7]._block_hash = b"x"
    bench.scheduler.requests["a"].num_computed_tokens = 0
    bench.step(a=20, b=18)

    found = bench.reader.read_block_map()

    assert found is not None
    assert (found.used_blocks, found.shared_blocks, found.reusable_blocks, found.free_blocks) == (3, 1, 1, 28)
    owners = {owner.request_id: (owner.blocks, owner.tokens, owner.tail_tokens) for owner in found.requests}
    assert owners == {"a": (2, 20, 12), "b": (2, 18, 14)}
    assert found.owners[2:4] == (1).to_bytes(2, "little")
    assert found.owners[4:6] == (0).to_bytes(2, "little")
    assert found.runs_of_free == {2: 1, 27: 1}


def test_a_sliding_window_has_no_tail_that_could_be_told(hook: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    scheduler.kv_cache_manager.coordinator.single_type_managers.append(SlidingWindowManager(16))
    bench = Bench(hook, tmp_path, scheduler)
    bench.add("a")
    scheduler.hold("a", 1)
    bench.step(a=10)

    found = bench.reader.read_block_map()

    assert found is not None
    assert found.tail_tokens is None
    assert bench.reader.head is not None
    assert not bench.reader.head.tail_known


def test_a_large_map_is_made_in_slices_over_steps(hook: Any, tmp_path: Path) -> None:
    bench = Bench(hook, tmp_path, Scheduler(blocks=20_000))
    bench.add("a", "b")
    bench.scheduler.hold("a", *range(1, 9_001))
    bench.scheduler.hold("b", *range(9_001, 18_001))
    for _ in range(3):
        bench.step(a=1, b=1)
        assert bench.reader.read_block_map() is None
    for _ in range(4):
        bench.step(a=1, b=1)

    found = bench.reader.read_block_map()

    assert found is not None
    assert found.last_step > found.first_step
    assert found.used_blocks == 18_000
    assert [owner.blocks for owner in found.requests] == [9_000, 9_000]


def test_scans_stay_within_their_share_of_the_steps(hook: Any, tmp_path: Path) -> None:
    bench = Bench(hook, tmp_path, Scheduler(blocks=4_000))
    bench.add("a")
    bench.reader.watch(60.0)
    for _ in range(300):
        bench.step(a=1)

    cost = bench.reader.read_cost()

    assert cost is not None
    assert cost.scans == 1


def test_a_hook_that_fails_takes_itself_away_and_the_engine_goes_on(hook: Any, tmp_path: Path) -> None:
    bench = Bench(hook, tmp_path)
    bench.add("a")
    bench.follower._log._pool = None
    for _ in range(hook.MAX_FAILURES + 2):
        bench.step(a=1)

    assert "removed after 5 failures: AttributeError" in bench.reader.missing
    assert "schedule" not in vars(bench.scheduler)
    assert bench.reader.in_step_s() is None
    cost = bench.reader.read_cost()
    assert cost is not None
    assert cost.failures == 5


def test_an_error_of_the_engine_itself_passes_through(bench: Bench) -> None:
    bench.scheduler.plan = [{"unknown": 1}]
    output = bench.scheduler.schedule()

    with pytest.raises(KeyError):
        bench.scheduler.update_from_output(output)


def test_a_scheduler_of_another_make_is_left_alone_with_a_reason(hook: Any, tmp_path: Path) -> None:
    scheduler = SimpleNamespace(schedule=len, update_from_output=len)

    assert hook.follow(scheduler, str(tmp_path / "steps.ring")) is None

    assert scheduler.schedule is len
    assert "cannot be followed: AttributeError" in RingReader(str(tmp_path / "steps.ring")).missing


def test_a_folder_that_takes_no_file_leaves_the_engine_alone(hook: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()

    assert hook.follow(scheduler, str(tmp_path / "gone" / "steps.ring")) is None
    assert "schedule" not in vars(scheduler)


def test_only_the_first_of_several_cores_writes(hook: Any, tmp_path: Path) -> None:
    scheduler = Scheduler()
    scheduler.parallel_config = SimpleNamespace(data_parallel_index=1)  # type: ignore[attr-defined]

    assert hook.follow(scheduler, str(tmp_path / "steps.ring")) is None
    assert not (tmp_path / "steps.ring").exists()


def test_any_class_of_scheduler_is_followed_under_its_own_name(hook: Any, tmp_path: Path) -> None:
    followed = hook.make_followed(Scheduler, str(tmp_path / "steps.ring"))

    made = followed(blocks=9)

    assert isinstance(made, Scheduler)
    assert (followed.__name__, followed.__module__) == ("Scheduler", Scheduler.__module__)
    assert "schedule" in vars(made)


def test_no_value_of_a_request_is_in_a_reason(hook: Any) -> None:
    assert "secret" not in hook.describe(ValueError("secret prompt"))
    assert hook.describe(AttributeError("no attribute 'x'")) == "AttributeError: no attribute 'x'"


def test_the_table_of_a_profile_is_spared_once_its_module_is_there(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = sys.modules["sluice_engine.profiler"]
    profiler.spare_table()
    wrapper = type("TorchProfilerWrapper", (), {"_build_profiler_table": lambda self: "slow"})
    monkeypatch.setitem(sys.modules, profiler.WRAPPER, SimpleNamespace(TorchProfilerWrapper=wrapper))
    profiler.spare_table()
    profiler.spare_table()

    assert wrapper()._build_profiler_table(sort_key="x") == profiler.NO_TABLE
