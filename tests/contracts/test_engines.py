"""What every engine must do alike: the fake, the simulated one and real vLLM."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pool.domain.start_errors import StartCode
from tests.contracts.conftest import KEY, SERVED, Fleet, Running, wait_ended
from workers.engines import http
from workers.nodehost.proc import find_process
from workers.warmup import WarmUpLane, WarmUpRecipe, WarmUpTarget, probe_engine, warm_up

CHAT = {"model": SERVED, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
COMPLETION = {"model": SERVED, "prompt": "hello", "max_tokens": 4}


def post(engine: Running, path: str, body: dict[str, Any]) -> http.Answer:
    return http.call(engine.address, path, engine_key=KEY, body=body, timeout_s=30)


def stream(engine: Running, path: str, body: dict[str, Any]) -> list[str]:
    connection = http.open_connection(engine.address, timeout_s=30)
    try:
        response = http.send(connection, path, engine_key=KEY, body={**body, "stream": True})
        assert response.status == 200
        return list(http.read_events(response))
    finally:
        connection.close()


def test_health_answers(engine: Running) -> None:
    health = engine.driver.read_health(engine.address, engine_key=KEY)

    assert (health.answers, health.status) == (True, 200)


def test_the_model_is_listed_under_its_served_name(engine: Running) -> None:
    listed = http.call(engine.address, "/v1/models", engine_key=KEY).json()

    assert [model["id"] for model in listed["data"]] == [SERVED]


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
def test_a_whole_answer_has_text_and_usage(engine: Running, path: str, body: dict[str, Any]) -> None:
    answer = post(engine, path, body)

    assert answer.status == 200
    content = answer.json()
    assert content["usage"]["prompt_tokens"] > 0
    assert content["usage"]["completion_tokens"] > 0
    assert content["model"] == SERVED


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
def test_a_stream_ends_with_usage_and_done(engine: Running, path: str, body: dict[str, Any]) -> None:
    events = stream(engine, path, {**body, "stream_options": {"include_usage": True}})

    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] > 0


def test_an_unknown_model_is_404(engine: Running) -> None:
    if engine.driver.kind == "fake":
        pytest.skip("the fake answers for every model")
    assert post(engine, "/v1/completions", {**COMPLETION, "model": "nope"}).status == 404


def test_a_prompt_beyond_the_context_is_400(engine: Running) -> None:
    assert post(engine, "/v1/completions", {**COMPLETION, "prompt": "word " * 9000}).status == 400


def test_load_is_known_and_moves(engine: Running) -> None:
    before = engine.driver.read_load(engine.address, engine_key=KEY)
    post(engine, "/v1/completions", COMPLETION)

    after = engine.driver.read_load(engine.address, engine_key=KEY)

    assert after.running is not None
    assert after.waiting is not None
    assert after.kv_usage_ratio is not None
    assert before.generation_tokens is not None
    assert after.generation_tokens is not None
    assert after.generation_tokens > before.generation_tokens


def test_fc_09_warm_up_is_real_completions_of_each_lane(engine: Running) -> None:
    target = WarmUpTarget(engine.address, SERVED, KEY)
    lanes = (WarmUpLane("short", 128), WarmUpLane("long"))

    figures = warm_up(target, WarmUpRecipe(lanes=lanes, per_lane=3, max_requests=16, budget_s=60))

    assert [lane.lane for lane in figures.lanes] == ["short", "long"]
    assert all(lane.requests >= 3 for lane in figures.lanes)
    assert figures.requests <= 16
    assert figures.prefill_tokens_per_s


def test_a_probe_of_a_sound_engine_succeeds(engine: Running) -> None:
    assert probe_engine(engine.address, model=SERVED, engine_key=KEY, timeout_s=10)


def test_fc_01_a_stopped_engine_fails_its_probe(fleet: Fleet) -> None:
    engine = fleet.start()
    pids = engine.process().members
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    succeeded = probe_engine(engine.address, model=SERVED, engine_key=KEY, timeout_s=1)

    assert not succeeded
    engine.host.stop(engine.spec.replica_id, generation=1, grace_s=0)
    wait_ended(engine)


def test_sigterm_ends_it_within_its_grace(fleet: Fleet) -> None:
    engine = fleet.start()
    began = time.monotonic()

    engine.host.stop(engine.spec.replica_id, generation=1, grace_s=5)
    ended = wait_ended(engine)

    assert time.monotonic() - began < 5.5
    assert not engine.driver.read_health(engine.address, engine_key=KEY).answers
    assert ended.ended_at is not None


def test_fc_03_nothing_of_a_killed_engine_survives(fleet: Fleet) -> None:
    engine = fleet.start()
    process = engine.process()
    assert process.pid is not None

    os.kill(process.pid, signal.SIGKILL)
    wait_ended(engine)

    deadline = time.monotonic() + 3
    while any((found := find_process(pid)) and found.alive for pid in process.members):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_fc_20_the_key_is_nowhere_to_be_read(engine: Running) -> None:
    assert KEY not in engine.read_log()
    for pid in engine.process().members:
        assert KEY not in Path(f"/proc/{pid}/cmdline").read_text()
    folder = Path(engine.spec.directory)
    assert all(KEY.encode() not in path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_figures_and_stage_are_read_from_the_log(engine: Running) -> None:
    if engine.driver.kind == "fake":
        pytest.skip("the fake prints nothing")
    figures = engine.driver.read_figures(engine.read_log())

    assert figures.kv_cache_tokens
    assert figures.max_model_len == 1024
    assert engine.driver.read_stage(engine.read_log()) == "serving"


def test_fc_33_a_cache_too_small_fails_for_good_and_says_what_fits(fleet: Fleet) -> None:
    if fleet.driver.kind == "fake":
        pytest.skip("the fake has switches for this")
    kv_bytes = 1 << 20 if fleet.driver.kind == "sim" else 2 << 20
    engine = fleet.start(wait=False, kv_cache_memory_bytes=kv_bytes, max_model_len=2048)

    ended = wait_ended(engine)

    found = engine.driver.classify_failure(engine.read_log(), exit_code=ended.exit_code, signal=ended.signal)
    assert (found.code, found.permanent) == (StartCode.KV_TOO_SMALL, True)
    assert found.figures["suggested_tokens"]
