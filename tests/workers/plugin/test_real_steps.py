"""The step ring of a real vLLM with SmolLM2: its figures are the engine's own, cheap, and readable when it hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.contracts.conftest import KEY, SERVED, Running
from tests.workers.plugin.real_engine import (
    SETTINGS,
    complete,
    complete_many,
    make_overlay,
    open_fleet,
    open_ring,
    wait_for,
)
from workers.engine_ring import BlockMap, FinishedRequest, RingReader, Step
from workers.engines import http

pytestmark = pytest.mark.engine

# Writes what the engine itself tells its clients of each step (SchedulerStats) beside the ring.
WITNESS = """

import json as _json

_update = Follower.update_from_output


def _witnessed(self, scheduler_output, *args, **kwargs):
    outputs = _update(self, scheduler_output, *args, **kwargs)
    stats = [each.scheduler_stats for each in outputs.values() if each.scheduler_stats is not None]
    line = {"step": self._log.writer.newest_step, "tokens": scheduler_output.total_num_scheduled_tokens}
    line |= {"usage": stats[0].kv_cache_usage, "running": stats[0].num_running_reqs} if stats else {}
    with open(os.environ[ring.RING_VARIABLE] + ".witness", "a") as file:
        file.write(_json.dumps(line) + chr(10))
    return outputs


Follower.update_from_output = _witnessed
"""
STORY = "Once upon a time there was a shepherd who counted sheep on a hill above a quiet village. " * 5


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    overlay = make_overlay(tmp_path_factory.mktemp("overlay"), hook=WITNESS)
    with open_fleet(overlay) as fleet:
        yield fleet.start(**SETTINGS)


@pytest.fixture
def reader(engine: Running) -> Iterator[RingReader]:
    made = open_ring(engine, from_start=False)
    assert made.missing == ""
    yield made
    made.close()


class Watch:
    """Reads the ring as its node's worker does, while a block of calls runs."""

    def __init__(self, reader: RingReader) -> None:
        self.steps: list[Step] = []
        self.maps: dict[int, BlockMap] = {}
        self.finished: list[FinishedRequest] = []
        self._reader = reader
        self._done = Event()

    def run(self) -> None:
        while not self._done.wait(0.02):
            self.read()

    def read(self) -> None:
        self._reader.watch(5.0)
        if (found := self._reader.read_block_map()) is not None:
            self.maps[found.last_step] = found
        self.steps += self._reader.read_steps()
        self.finished += self._reader.read_finished()

    def __enter__(self) -> Watch:
        self.read()
        self.__init__(self._reader)  # type: ignore[misc]
        self._pool = ThreadPoolExecutor(1)
        self._running = self._pool.submit(self.run)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._running.result()
        self._pool.shutdown()
        self.read()


def read_witness(engine: Running) -> dict[int, dict[str, Any]]:
    """What the engine told of each step, by the ring's number of it; steps without tokens are left out."""
    lines = Path(f"{engine.spec.directory}/steps.ring.witness").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["step"]: row for row in rows if row["tokens"] and "usage" in row}


def read_sums(engine: Running) -> dict[str, float]:
    """The engine's own sums of its requests' times."""
    text = http.call(engine.address, "/metrics", engine_key=KEY, timeout_s=30).body.decode()
    found = re.findall(r"^vllm:request_(queue|prefill|decode)_time_seconds_sum\S* (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_sixteen_in_flight_the_block_map_is_the_engines_own_and_costs_no_percent(
    engine: Running, reader: RingReader
) -> None:
    before, sums = reader.read_cost(), read_sums(engine)
    with Watch(reader) as watch:
        complete_many(engine, 16, tokens=60, prompt=STORY)
    after, told = reader.read_cost(), read_witness(engine)

    assert engine.process().forked
    assert reader.lost_steps == 0
    steps = {step.sequence: step for step in watch.steps}
    assert max(step.running for step in watch.steps) == 16
    assert {step.kind for step in watch.steps} >= {"prefill", "mixed", "decode"}
    assert sum(step.preempted for step in watch.steps) > 0
    for sequence, step in steps.items():
        assert step.used_blocks / 20 == pytest.approx(told[sequence]["usage"])
        assert step.running == told[sequence]["running"]
    sampled = [
        found
        for found in watch.maps.values()
        if found.first_step == found.last_step and found.last_step in steps
    ]
    assert len(sampled) >= 3
    for found in sampled:
        assert found.first_step == found.last_step
        check_map(found, steps[found.last_step])

    assert {request.request_id for request in watch.finished} == {f"req-{n}" for n in range(16)}
    assert {request.output_tokens for request in watch.finished} == {60}
    assert sum(request.preemptions for request in watch.finished) == sum(
        step.preempted for step in watch.steps
    )
    now = read_sums(engine)
    for name in ("queue", "prefill", "decode"):
        mine = sum(getattr(request, f"{name}_s") for request in watch.finished)
        assert mine == pytest.approx(now[name] - sums[name], rel=0.02, abs=0.05), name

    assert before is not None
    assert after is not None
    assert after.failures == 0
    assert after.own_s - before.own_s <= 0.01 * (after.step_s - before.step_s)


def check_map(found: BlockMap, step: Step) -> None:
    """Counted block by block it gives what the engine's own counters gave at that step."""
    assert found.used_blocks == step.used_blocks
    assert found.free_blocks + found.reusable_blocks == 20 - step.used_blocks
    assert len(found.requests) == step.running
    owned = sum(owner.blocks for owner in found.requests)
    assert owned >= found.used_blocks
    for owner in found.requests:
        assert owner.tail_tokens == owner.blocks * 128 - owner.tokens
        assert owner.tail_tokens is not None
        assert 0 <= owner.tail_tokens < 256


def test_a_prefix_that_was_cached_is_told(engine: Running, reader: RingReader) -> None:
    prompt = "A prefix that nobody else asks for. " * 40
    with Watch(reader) as watch:
        complete(engine, prompt, tokens=4, request_id="req-cold")
        complete(engine, prompt, tokens=4, request_id="req-warm")

    cold, warm = watch.finished
    assert (cold.request_id, cold.cached_tokens) == ("req-cold", 0)
    assert warm.cached_tokens == 256
    assert sum(step.cached_tokens for step in watch.steps) == 256
    found = reader.read_block_map()
    assert found is not None
    assert (found.used_blocks, found.reusable_blocks >= 2) == (0, True)


def test_a_prefix_in_use_by_two_is_shared(engine: Running, reader: RingReader) -> None:
    prompt = "Two ask for one and the same prefix here. " * 30
    complete(engine, prompt, tokens=1)
    with Watch(reader) as watch, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda ending: complete(engine, prompt + ending, tokens=40), ("one", "two")))

    assert max(found.shared_blocks for found in watch.maps.values()) >= 2


def test_a_client_that_leaves_ends_its_request_as_aborted(engine: Running, reader: RingReader) -> None:
    reader.read_finished()
    connection = http.open_connection(engine.address, timeout_s=60)
    body = {"model": SERVED, "prompt": "Tell", "max_tokens": 900, "stream": True, "ignore_eos": True}
    http.send(connection, "/v1/completions", engine_key=KEY, body=body).readline()
    connection.close()

    (aborted,) = wait_for(reader.read_finished, "the end of the request")

    assert aborted.outcome == "aborted"
    assert aborted.output_tokens < 900
    newest = wait_for(lambda: (step := reader.read_newest_step()) and not step.running and step, "rest")
    assert newest.used_blocks == 0


def test_a_stopped_engine_stays_readable_and_shows_how_long_its_step_takes(
    engine: Running, reader: RingReader
) -> None:
    head = reader.head
    assert head is not None
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, engine, "Go on and on", tokens=60)
        wait_for(lambda: reader.in_step_s() is not None, "a step in progress")
        os.kill(head.pid, signal.SIGSTOP)
        try:
            time.sleep(0.5)
            again = open_ring(engine)
            assert again.read_steps()
            assert again.read_block_map() is not None
            assert again.missing == ""
            age, since = again.newest_age_s(), again.in_step_s()
            assert age is not None
            assert since is None or since >= 0.4
            assert age >= 0.4
            again.close()
        finally:
            os.kill(head.pid, signal.SIGCONT)
        assert answer.result()["usage"]["completion_tokens"] == 60
    assert reader.read_steps()
