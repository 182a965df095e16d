"""What only a real vLLM can show: start errors, forks, the key gate, missing templates. Marked `engine`."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool.domain.start_errors import StartCode
from tests.contracts.conftest import KEY, SERVED, Fleet, Running, wait_answers, wait_ended
from tests.fakes.tiny_model import make_tiny_model, truncate_weights
from workers.engines import http
from workers.runtimes import probe_runtime
from workers.warmup import WarmUpFailed, WarmUpRecipe, WarmUpTarget, warm_up

pytestmark = [pytest.mark.engine, pytest.mark.parametrize("fleet", ["vllm"], indirect=True)]


def explain(running: Running) -> tuple[StartCode, bool]:
    ended = wait_ended(running)
    found = running.driver.classify_failure(
        running.read_log(), exit_code=ended.exit_code, signal=ended.signal
    )
    return found.code, found.permanent


def start_with(fleet: Fleet, model: str, **settings: Any) -> Running:
    return fleet.start(model=model, wait=False, **settings)


def test_the_second_replica_is_forked(fleet: Fleet) -> None:
    engine = fleet.start()

    assert engine.process().forked


def test_temporary_files_of_a_forked_engine_lie_in_its_own_folder(fleet: Fleet) -> None:
    engine = fleet.start()

    assert len(list(Path(engine.spec.directory).glob("vllm_dist_*"))) == 1


def test_fc_33_a_context_beyond_the_model_fails_for_good(fleet: Fleet) -> None:
    assert explain(start_with(fleet, "model", max_model_len=500_000)) == (StartCode.CONTEXT_TOO_LONG, True)


def test_fc_76_a_truncated_shard_is_corrupt(fleet: Fleet) -> None:
    truncate_weights(make_tiny_model(fleet.folder / "cut"))

    assert explain(start_with(fleet, "cut")) == (StartCode.CORRUPT_WEIGHTS, True)


def test_a_missing_model_is_a_missing_file(fleet: Fleet) -> None:
    assert explain(start_with(fleet, "nothing-here")) == (StartCode.MISSING_FILE, True)


def test_fc_75_a_model_without_a_template_is_not_ready_for_chat(fleet: Fleet) -> None:
    make_tiny_model(fleet.folder / "bare", chat_template=False)
    engine = fleet.start(model="bare")
    target = WarmUpTarget(engine.address, SERVED, KEY)

    with pytest.raises(WarmUpFailed) as caught:
        warm_up(target, WarmUpRecipe(per_lane=1, budget_s=20))

    assert (caught.value.failure.code, caught.value.failure.permanent) == (StartCode.NO_CHAT_TEMPLATE, True)
    assert warm_up(target, WarmUpRecipe(routes=("completions",), per_lane=1, budget_s=20)).requests >= 2


def test_fc_19_every_path_and_method_demands_the_key_on_a_network_address(fleet: Fleet) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    running = start_tcp(fleet, port)
    wait_answers(running)

    for path in (
        "/health",
        "/metrics",
        "/v1/models",
        "/version",
        "/docs",
        "/nope",
        "//metrics",
        "/v1/../metrics",
    ):
        assert http.call(running.address, path, engine_key="").status == 401, path
        assert http.call(running.address, path, engine_key="wrong").status == 401, path
    for path in ("/tokenize", "/invocations", "/v1/completions", "/detokenize"):
        assert http.call(running.address, path, engine_key="", body={}).status == 401, path
    assert KEY not in running.read_log()
    for pid in running.process().members:
        assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_fc_32_a_port_in_use_is_transient(fleet: Fleet) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        running = start_tcp(fleet, squatter.getsockname()[1])

        assert explain(running) == (StartCode.PORT_IN_USE, False)


def start_tcp(fleet: Fleet, port: int) -> Running:
    fleet.count += 1
    first = fleet.start(wait=False, max_model_len=512)
    first.host.stop(first.spec.replica_id, generation=1, grace_s=0)
    wait_ended(first)
    spec = replace(first.spec, replica_id=f"tcp{fleet.count}", address=f"http://127.0.0.1:{port}")
    fleet.driver.prepare(spec)
    fleet.host.spawn(spec, command=fleet.driver.build_command(spec))
    return Running(fleet.driver, fleet.host, spec)


def test_the_probe_finds_what_the_runtime_can_do(fleet: Fleet) -> None:
    facts = probe_runtime(fleet.runtime)

    assert facts.version.startswith("0.32")
    assert facts.platform == "cpu"
    assert facts.default_block_size == 128
    assert "compressed-tensors" in facts.quantizations
    assert facts.fastest_dtype in ("float32", "bfloat16")
