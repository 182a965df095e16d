"""What is read out of a profiler's trace: of a host alone, and of a host that runs ahead of a device."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from workers.engines import http, profiling
from workers.engines.profiling import ProfileFailed, profile_engine
from workers.engines.trace import ATTENTION, COPIES, MATRIX, MAX_KERNELS, OTHER, classify, reduce_trace
from workers.engines.trace_child import dump_profile, load_profile

DECODE = "execute_context_0(0)_generation_4(4)"


def make_event(name: str, ts: float, dur: float, *, cat: str = "cpu_op", tid: object = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid}


def make_step(name: str, ts: float, dur: float, *, cat: str = "user_annotation") -> dict[str, Any]:
    return make_event(name, ts, dur, cat=cat)


HOST = [
    make_step("execute_context_1(26)_generation_0(0)", 0, 1000),
    make_event("vllm::unified_attention_with_output", 100, 300),
    make_event("aten::mm", 150, 100),
    make_event("aten::linear", 500, 200),
    make_event("aten::addmm", 510, 150),
    make_event("aten::copy_", 800, 50),
    make_event("aten::silu", 900, 50),
    make_step(DECODE, 2000, 500),
    make_event("aten::mm", 2100, 250),
    make_event("aten::mm", 5000, 250),
]


def test_a_hosts_time_is_each_operations_own_and_goes_to_the_part_around_it() -> None:
    profile = reduce_trace(HOST)

    first, second = profile.steps
    assert (first.prefill_sequences, first.prefill_tokens, first.decode_sequences) == (1, 26, 0)
    assert (second.decode_sequences, second.decode_tokens) == (4, 4)
    microseconds = {part: round(value * 1e6) for part, value in first.parts_s.items()}
    assert microseconds == {ATTENTION: 300, MATRIX: 200, COPIES: 50, OTHER: 50}
    assert second.parts_s[MATRIX] == pytest.approx(250e-6)
    assert first.launches_s is None
    assert not profile.on_device


def test_shares_are_of_the_steps_time_and_what_lies_between_is_left() -> None:
    shares = reduce_trace(HOST).shares

    assert shares[MATRIX] == pytest.approx(450 / 1500)
    assert sum(shares.values()) == pytest.approx(850 / 1500)


def test_the_longest_kernels_and_the_flame_graph_sum_up() -> None:
    profile = reduce_trace(HOST)

    assert (profile.kernels[0].name, profile.kernels[0].part, profile.kernels[0].calls) == (
        "aten::mm",
        MATRIX,
        1,
    )
    flame = profile.flame.as_json()
    assert flame["value"] == pytest.approx(850e-6)
    attention = next(child for child in flame["children"] if "attention" in child["name"])
    assert attention["value"] == pytest.approx(300e-6)
    assert [child["name"] for child in attention["children"]] == ["aten::mm"]


DEVICE = [
    make_step(DECODE, 0, 200),
    make_step(DECODE, 300, 200),
    make_event("cudaLaunchKernel", 10, 5, cat="cuda_runtime"),
    make_event("cudaGraphLaunch", 310, 40, cat="cuda_runtime"),
    make_step(DECODE, 1000, 1000, cat="gpu_user_annotation"),
    make_step(DECODE, 2000, 1000, cat="gpu_user_annotation"),
    make_event("nvjet_tst_128x64", 1100, 600, cat="kernel", tid=7),
    make_event("flash_fwd_kernel", 1700, 200, cat="kernel", tid=7),
    make_event("Memcpy DtoH", 2100, 50, cat="gpu_memcpy", tid=7),
    make_event("rms_norm_kernel", 2200, 100, cat="kernel", tid=7),
    make_event("aten::mm", 20, 100),
]


def test_a_devices_time_is_that_of_its_kernels_and_launches_are_the_hosts() -> None:
    profile = reduce_trace(DEVICE)

    first, second = profile.steps
    assert profile.on_device
    assert first.parts_s == pytest.approx({MATRIX: 600e-6, ATTENTION: 200e-6, COPIES: 0, OTHER: 0})
    assert second.parts_s == pytest.approx({MATRIX: 0, ATTENTION: 0, COPIES: 50e-6, OTHER: 100e-6})
    assert [step.launches_s for step in profile.steps] == pytest.approx([5e-6, 40e-6])
    assert [step.launches for step in profile.steps] == [1, 1]
    assert [child.name for child in profile.flame.children.values()][0] == MATRIX


def test_everything_is_bounded() -> None:
    events = [make_step(DECODE, number * 1000, 900) for number in range(80)]
    events += [make_event(f"op{number}" * 100, 10 + number * 0.2, 0.1) for number in range(4000)]

    profile = reduce_trace(events)

    assert len(profile.steps) == 50
    assert len(profile.kernels) == MAX_KERNELS
    assert max(len(kernel.name) for kernel in profile.kernels) <= 120
    assert len(profile.flame.children) <= 1500


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("void flash::flash_fwd_splitkv_kernel<...>", ATTENTION),
        ("vllm::unified_attention_with_output", ATTENTION),
        ("vllm::unified_kv_cache_update", COPIES),
        ("reshape_and_cache_flash_kernel", COPIES),
        ("aten::copy_", COPIES),
        ("sm90_xmma_gemm_bf16bf16", MATRIX),
        ("aten::addmm", MATRIX),
        ("aten::add", OTHER),
        ("triton_red_fused_rms_norm", OTHER),
    ],
)
def test_names_are_known(name: str, part: str) -> None:
    assert classify(name) == part


def test_a_trace_without_a_step_and_broken_events_are_refused() -> None:
    broken: list[dict[str, Any]] = [
        {"ph": "X", "name": DECODE},
        {"ph": "X", "name": DECODE, "ts": "x", "dur": 1},
    ]

    with pytest.raises(ValueError, match="no step"):
        reduce_trace([*broken, make_event("aten::mm", 1, 1)])


class Engine:
    """Answers the profiler's routes and writes `content` as its trace."""

    def __init__(self, folder: Path, content: bytes | None, status: int = 200) -> None:
        self.folder, self.content, self.status = folder, content, status
        self.calls: list[str] = []

    def call(self, address: str, path: str, *, body: dict[str, Any], **_: Any) -> http.Answer:
        self.calls.append(path)
        if self.status == 200 and path == "/start_profile" and self.content is not None:
            name = f"{body['profile_prefix']}_rank0.123.pt.trace.json.gz"
            (self.folder / name).write_bytes(self.content)
        return http.Answer(self.status, b"")


def run_profile(engine: Engine, monkeypatch: pytest.MonkeyPatch, *, steps: int = 3) -> Any:
    monkeypatch.setattr(http, "call", engine.call)
    clock = iter(range(1000))
    return profile_engine(
        "unix:/x",
        engine_key="",
        folder=str(engine.folder),
        steps=steps,
        limit_s=3,
        clock=lambda: next(clock),
        sleep=lambda _: None,
    )


def test_a_run_starts_stops_reads_and_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path, gzip.compress(json.dumps({"traceEvents": HOST}).encode()))

    profile = run_profile(engine, monkeypatch)

    assert len(profile.steps) == 2
    assert engine.calls == ["/start_profile", "/stop_profile"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (None, 200, "no step ran"),
        (None, 404, "started without a profiler"),
        (None, 500, "refused"),
        (b"no gzip", 200, "cannot be read"),
        (gzip.compress(b"{}", mtime=0), 200, "cannot be read"),
        (gzip.compress(b'{"traceEvents": [1, {"ph": "X"}]}', mtime=0), 200, "no step"),
    ],
)
def test_failures_are_told_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, status: int, message: str
) -> None:
    engine = Engine(tmp_path, content, status)

    with pytest.raises(ProfileFailed, match=message):
        run_profile(engine, monkeypatch)

    assert list(tmp_path.iterdir()) == []


def test_a_trace_beyond_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MAX_TRACE_BYTES", 100)
    engine = Engine(tmp_path, gzip.compress(json.dumps({"traceEvents": HOST}).encode()))

    with pytest.raises(ProfileFailed, match="fewer steps"):
        run_profile(engine, monkeypatch)


@pytest.mark.parametrize(
    ("limit", "value"), [("MEMORY_BYTES", 96 << 20), ("CPU_S", 1), ("READ_LIMIT_S", 0.01)]
)
def test_a_trace_that_costs_too_much_is_given_up_and_the_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    if limit == "READ_LIMIT_S":
        monkeypatch.setattr(profiling, limit, value)
    else:
        # The child is another interpreter: it gets the bound in its text.
        text = f"from workers.engines import trace_child as c; c.{limit} = {value}; c.main(__import__('sys').argv[1:])"
        monkeypatch.setattr(profiling, "CHILD", ["-c", text])
    large = json.dumps({"traceEvents": HOST * 60_000}).encode()

    with pytest.raises(ProfileFailed, match="fewer steps"):
        run_profile(Engine(tmp_path, gzip.compress(large, 1)), monkeypatch)

    assert list(tmp_path.iterdir()) == []


def test_a_profile_comes_back_from_the_child_as_it_was() -> None:
    profile = reduce_trace(HOST)

    assert load_profile(json.loads(json.dumps(dump_profile(profile)))) == profile


def test_the_number_of_steps_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProfileFailed, match="1 to 50"):
        run_profile(Engine(tmp_path, None), monkeypatch, steps=51)
