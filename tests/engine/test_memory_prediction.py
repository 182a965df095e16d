"""The memory model against the figures of a real vLLM. One process starts the engine once per model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pool.domain.memory import Device, KvPlan, predict_kv
from pool.domain.profiles import EngineSettings, settings_to_json
from pool.domain.version_facts import ModelFacts, read_facts
from pool.env import env_path
from tests.fakes.tiny_model import Shape, make_tiny_model

pytestmark = pytest.mark.engine

MIB = 2**20
START_TIMEOUT_S = 240
PRINTED = re.compile(r"(?:CPU|GPU) KV cache size: ([\d,]+) tokens")
SMOLLM2 = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Case:
    shape: Shape
    settings: EngineSettings
    config: dict[str, int] | None = None
    """Fields of config.json that replace those of the shape; the weights are then made up by the engine."""


def kv(size_mib: int, **settings: Any) -> EngineSettings:
    return EngineSettings(kv_cache_memory_bytes=size_mib * MIB, enforce_eager=True, **settings)


CASES = {
    "smollm2_float32": Case(Shape(), kv(256, dtype="float32", max_model_len=4096), SMOLLM2),
    "smollm2_bf16": Case(Shape(), kv(1024), SMOLLM2),
    "grouped_query_bf16": Case(Shape(), kv(64)),
    "multi_head_fp16_block_64": Case(
        Shape(layers=3, hidden=128, kv_heads=4, head_dim=64, max_positions=1000, dtype="float16"),
        kv(48, block_size=64),
    ),
    "multi_query_float32_block_32": Case(
        Shape(layers=5, kv_heads=1, head_dim=128, dtype="float32"), kv(32, dtype="float32", block_size=32)
    ),
    "short_context_of_odd_length": Case(Shape(layers=4, heads=2), kv(24, max_model_len=1500)),
    "mla_bf16": Case(Shape(kv_lora_rank=64), kv(16)),
}

TOO_LARGE = Case(Shape(layers=4), kv(2, max_model_len=2048))


@pytest.fixture(scope="module")
def engine_python() -> Path:
    found = env_path("SLUICE_TEST_ENGINE_PYTHON", None)
    if found is None:
        pytest.skip("SLUICE_TEST_ENGINE_PYTHON names no engine environment")
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    cases = {**CASES, "too_large": TOO_LARGE}
    return {name: _make_model(tmp_path_factory.mktemp(name), case) for name, case in cases.items()}


@pytest.fixture(scope="module")
def printed(engine_python: Path, folders: dict[str, Path]) -> dict[str, dict[str, Any]]:
    cases = {**CASES, "too_large": TOO_LARGE}
    starts = [_arguments(folders[name], case) for name, case in cases.items()]
    script = Path(__file__).with_name("print_kv_tokens.py")
    done = subprocess.run(
        [engine_python, script],
        input=json.dumps(starts),
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(cases), done.stderr[-2000:]
    return dict(zip(cases, lines, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_predicted_tokens_are_those_that_the_engine_counts(
    name: str, printed: dict[str, dict[str, Any]], folders: dict[str, Path]
) -> None:
    plan = _predict(folders[name], CASES[name].settings)

    assert plan.printed_tokens == pytest.approx(printed[name]["tokens"], rel=0.01)
    assert plan.context_tokens == printed[name]["context_tokens"]


def test_the_figures_for_smollm2_are_the_known_ones(printed: dict[str, dict[str, Any]]) -> None:
    assert printed["smollm2_float32"]["tokens"] == 5_760
    assert printed["smollm2_bf16"]["tokens"] == 46_592


def test_a_context_that_is_too_large_is_refused_with_the_predicted_length(
    printed: dict[str, dict[str, Any]], folders: dict[str, Path]
) -> None:
    plan = _predict(folders["too_large"], TOO_LARGE.settings)
    refused = printed["too_large"]["refused"]

    assert not plan.engine_accepts
    assert f"estimated maximum model length is {plan.usable_tokens}." in refused


@pytest.fixture
def server_log(engine_python: Path, folders: dict[str, Path], tmp_path: Path) -> Iterator[str]:
    """The log of the API server as the worker starts it, up to the line that states the cache's size."""
    case = CASES["multi_query_float32_block_32"]
    arguments = _arguments(folders["multi_query_float32_block_32"], case)
    options = [
        part for name, value in arguments.items() for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = [str(engine_python), "-m", "vllm.entrypoints.launchers.api_server.entry", *options]
    uds = ["--uds", str(tmp_path / "s"), "--distributed-executor-backend", "uni", "--enforce-eager"]
    process = subprocess.Popen(
        [*command, *uds],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if PRINTED.search(line):
                break
        yield "".join(lines)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def test_the_server_prints_the_predicted_tokens(server_log: str, folders: dict[str, Path]) -> None:
    name = "multi_query_float32_block_32"
    found = PRINTED.search(server_log)
    assert found is not None, server_log[-2000:]

    plan = _predict(folders[name], CASES[name].settings)

    assert plan.printed_tokens == pytest.approx(int(found.group(1).replace(",", "")), rel=0.01)


def _make_model(folder: Path, case: Case) -> Path:
    make_tiny_model(folder, case.shape)
    if case.config:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **case.config}))
    return folder


def _arguments(folder: Path, case: Case) -> dict[str, Any]:
    names = ("dtype", "block_size", "max_model_len", "kv_cache_memory_bytes")
    settings = settings_to_json(case.settings)
    given = {name: settings[name] for name in names if settings[name] is not None}
    return {"model": str(folder), **given, **({"load_format": "dummy"} if case.config else {})}


def _predict(folder: Path, settings: EngineSettings) -> KvPlan:
    plan = predict_kv(_facts(folder), settings, device=Device(kind="cpu", total_bytes=8 * 2**30))
    assert isinstance(plan, KvPlan)
    return plan


def _facts(folder: Path) -> ModelFacts:
    names = ("config.json", "tokenizer_config.json")
    return read_facts({name: (folder / name).read_bytes() for name in names})
