"""Command line and environment of vLLM from a profile's settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool.domain.errors import PoolError
from pool.ports import EngineSpec, RuntimeRef
from tests.fakes.tiny_model import make_tiny_model
from workers.engines.vllm import RemoteCodeRefused, VllmDriver


def make_spec(folder: Path, *, platform: str = "cpu", **settings: Any) -> EngineSpec:
    return EngineSpec(
        replica_id="r1",
        generation=3,
        runtime=RuntimeRef("vllm", "vllm", "/env/bin/python", ("/plugin",), platform),
        model_path=str(folder / "model"),
        served_model_name="tiny",
        settings=settings,
        address=f"unix:{folder}/r1.sock",
        engines_dir=str(folder / "engines"),
        compile_dir=str(folder / "compile" / "vllm" / "release"),
        engine_key="canary-key-of-the-engine",
    )


def flags_of(spec: EngineSpec) -> dict[str, str]:
    """Each flag with the word behind it ('' for a switch)."""
    argv = VllmDriver().build_command(spec).argv
    return {
        word: "" if following.startswith("--") else following
        for word, following in zip(argv, (*argv[1:], "--"), strict=True)
        if word.startswith("--")
    }


def test_settings_become_flags(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        dtype="float32",
        max_model_len=4096,
        max_num_seqs=32,
        kv_cache_memory_bytes=2**28,
        block_size=64,
    )

    flags = flags_of(spec)

    assert flags["--dtype"] == "float32"
    assert flags["--max-model-len"] == "4096"
    assert flags["--kv-cache-memory-bytes"] == str(2**28)
    assert flags["--block-size"] == "64"
    assert flags["--served-model-name"] == "tiny"
    assert "--quantization" not in flags


def test_fc_41_an_engine_tells_what_its_cache_held(tmp_path: Path) -> None:
    assert "--enable-prompt-tokens-details" in flags_of(make_spec(tmp_path))


def test_a_cpu_engine_runs_in_two_processes_without_compiling(tmp_path: Path) -> None:
    command = VllmDriver().build_command(make_spec(tmp_path, cpu_threads=1))

    assert "uni" in command.argv
    assert command.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert command.env["OMP_NUM_THREADS"] == "1"
    assert command.env["TORCH_COMPILE_DISABLE"] == "1"
    assert "--gpu-memory-utilization" not in command.argv


def test_a_cuda_engine_takes_its_devices_by_uuid(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, platform="cuda", tensor_parallel_size=2)
    spec = replace(spec, device_uuids=("GPU-a", "GPU-b"), internal_ports=(21500,))

    command = VllmDriver().build_command(spec)

    assert command.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert command.env["VLLM_PORT"] == "21500"
    assert flags_of(spec)["--tensor-parallel-size"] == "2"
    assert flags_of(spec)["--gpu-memory-utilization"] == "0.85"
    assert "TORCH_COMPILE_DISABLE" not in command.env


def test_fc_19_a_network_address_demands_the_key_on_every_path(tmp_path: Path) -> None:
    spec = replace(make_spec(tmp_path), address="http://10.0.0.5:21003")

    flags = flags_of(spec)

    assert (flags["--host"], flags["--port"]) == ("10.0.0.5", "21003")
    assert flags["--middleware"] == "sluice_engine.auth.KeyGate"
    assert "--middleware" not in flags_of(make_spec(tmp_path))


def test_fc_20_the_key_travels_in_the_secret_environment_only(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)

    command = VllmDriver().build_command(spec)

    assert command.secret_env == {"SLUICE_ENGINE_KEY": "canary-key-of-the-engine"}
    assert command.fork is not None
    for part in (command.argv, command.env, command.fork, repr(command), repr(spec)):
        assert "canary" not in str(part)


def test_nothing_of_one_engine_is_in_the_fork_plan(tmp_path: Path) -> None:
    first = make_spec(tmp_path, max_model_len=1024)
    second = replace(first, replica_id="r2", served_model_name="other", settings={"max_model_len": 512})

    plans = [VllmDriver().build_command(spec).fork for spec in (first, second)]

    assert plans[0] == plans[1]


def test_fc_51_unknown_settings_are_refused_and_words_stay_values(tmp_path: Path) -> None:
    with pytest.raises(PoolError):
        VllmDriver().build_command(make_spec(tmp_path, chat_template="/etc/passwd"))
    with pytest.raises(PoolError):
        VllmDriver().build_command(make_spec(tmp_path, dtype="float32 --chat-template /etc/passwd"))
    with pytest.raises(PoolError):
        VllmDriver().build_command(make_spec(tmp_path, quantization="--chat-template=/etc/passwd"))


def test_fc_52_code_of_the_version_is_refused_before_the_launch(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", auto_map=True)
    spec = make_spec(tmp_path)

    with pytest.raises(RemoteCodeRefused, match="auto_map"):
        VllmDriver().prepare(spec)

    assert "--trust-remote-code" not in flags_of(spec)


def test_fc_52_approved_code_is_allowed(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", auto_map=True)
    spec = replace(make_spec(tmp_path), remote_code_approved=True)

    VllmDriver().prepare(spec)

    assert "--trust-remote-code" in flags_of(spec)


def test_engines_never_reach_out(tmp_path: Path) -> None:
    env = VllmDriver().build_command(make_spec(tmp_path)).env

    assert env["HF_HUB_OFFLINE"] == env["TRANSFORMERS_OFFLINE"] == env["VLLM_NO_USAGE_STATS"] == "1"
    assert "PROMETHEUS_MULTIPROC_DIR" not in env


def test_fc_50_no_engine_fetches_what_a_caller_names(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)

    assert flags_of(spec)["--allowed-media-domains"] == "none.invalid"
    assert VllmDriver().build_command(spec).env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_sockets_and_temporary_files_of_an_engine_lie_in_its_own_folder(tmp_path: Path) -> None:
    near = replace(make_spec(tmp_path), engines_dir="/var/sluice/engines")
    far = replace(near, engines_dir="/" + "x" * 80)

    for name in ("VLLM_RPC_BASE_PATH", "TMPDIR"):
        assert VllmDriver().build_command(near).env[name] == near.directory
        assert name not in VllmDriver().build_command(far).env


def test_each_engine_writes_its_steps_and_profiles_into_its_own_folder(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    command = VllmDriver().build_command(spec)

    assert command.env["SLUICE_ENGINE_RING"] == f"{spec.directory}/steps.ring"
    profiler = json.loads(flags_of(spec)["--profiler-config"])
    assert profiler["torch_profiler_dir"] == f"{spec.directory}/profile"
    assert profiler["ignore_frontend"]
    assert not profiler["torch_profiler_with_stack"]
    assert not profiler["torch_profiler_use_gzip"]


def test_caches_are_kept_per_release_and_their_state_is_told(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)

    first = VllmDriver().prepare(spec)
    second = VllmDriver().prepare(spec)

    assert (first, second) == (False, True)
    env = VllmDriver().build_command(spec).env
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert env[name].startswith(spec.compile_dir)


def test_model_inspections_are_shared_by_the_releases_of_a_runtime(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    other = replace(spec, compile_dir=str(tmp_path / "compile" / "vllm" / "next"))

    for one in (spec, other):
        VllmDriver().prepare(one)
    (Path(spec.compile_dir) / "vllm" / "modelinfos" / "llama.json").write_text("{}")

    assert (Path(other.compile_dir) / "vllm" / "modelinfos" / "llama.json").exists()


def test_a_socket_that_an_earlier_engine_left_is_removed(tmp_path: Path) -> None:
    stale = tmp_path / "r1.sock"
    stale.touch()

    VllmDriver().prepare(make_spec(tmp_path))

    assert not stale.exists()


def test_speculative_decoding_is_one_json_flag(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "speculative_method": "draft_model",
        "speculative_tokens": 4,
        "speculative_version": "small",
    }
    spec = replace(make_spec(tmp_path, **settings), draft_model_path="/models/small")

    config = json.loads(flags_of(spec)["--speculative-config"])

    assert config == {"method": "draft_model", "num_speculative_tokens": 4, "model": "/models/small"}
