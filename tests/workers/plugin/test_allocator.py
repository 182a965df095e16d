"""Torch's allocator as the plug-in reads it, with a recorded shape of its answers: no CUDA here."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.engine_ring import RingReader
from workers.plugin.sluice_engine import ring

PLUGIN = Path(__file__).parents[3] / "workers" / "plugin"
STATS = {
    "allocated_bytes.all.current": 700,
    "reserved_bytes.all.current": 1000,
    "inactive_split_bytes.all.current": 250,
    "active_bytes.all.current": 750,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}
SNAPSHOT = [
    {
        "device": 0, "address": 4096, "total_size": size, "allocated_size": size // 2, "active_size": size // 2,
        "segment_type": "large", "frames": ["/home/somebody/file.py"],
        "blocks": [
            {"size": size // 2, "state": "active_allocated", "address": 4096},
            {"size": size // 2, "state": "inactive"},
        ],
    }
    for size in (200, 1000)
]  # fmt: skip


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(PLUGIN))
    for name in [name for name in sys.modules if name.startswith("sluice_engine")]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("sluice_engine.allocator")
    for name in [name for name in sys.modules if name.startswith("sluice_engine")]:
        del sys.modules[name]


def make_cuda() -> Any:
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        memory_stats=lambda: STATS,
        memory_snapshot=lambda: SNAPSHOT,
    )


def make_probe(allocator: Any, folder: Path) -> tuple[Any, RingReader]:
    path = str(folder / ring.FILE_NAME)
    writer = ring.RingWriter(path, blocks=0, block_size=0, engine="vllm")
    return allocator.AllocatorProbe(writer, str(folder / ring.SEGMENTS_NAME)), RingReader(path)


def test_totals_come_once_a_second(allocator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=make_cuda()))
    probe, reader = make_probe(allocator, tmp_path)
    assert reader.read_allocator() is None
    for now in (1, 1.5, 2.5):
        probe.advance(int(now * 1e9))

    found = reader.read_allocator()

    assert found is not None
    assert (found.at_s, found.ratio, found.retries, found.out_of_memory) == (2.5, 0.25, 2, 1)


def test_without_cuda_nothing_is_told(
    allocator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    probe, reader = make_probe(allocator, tmp_path)
    reader.ask_for_segments()

    probe.advance(10**9)

    assert reader.read_allocator() is None
    assert "no CUDA device" in json.loads((tmp_path / ring.SEGMENTS_NAME).read_text())["absent"]


def test_segments_come_when_asked_for_and_only_once(
    allocator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=make_cuda()))
    probe, reader = make_probe(allocator, tmp_path)
    path = tmp_path / ring.SEGMENTS_NAME
    probe.advance(10**9)
    assert not path.exists()

    reader.ask_for_segments()
    probe.advance(2 * 10**9)

    found = json.loads(path.read_text())
    assert [segment["total_size"] for segment in found["segments"]] == [1000, 200]
    assert found["segments"][0]["blocks"] == [[500, "active_allocated"], [500, "inactive"]]
    assert "somebody" not in path.read_text()
    path.unlink()
    probe.advance(3 * 10**9)
    assert not path.exists()


def test_segments_are_bounded(allocator: Any) -> None:
    many = [{**SNAPSHOT[0], "total_size": number} for number in range(3000)]

    found = allocator.shorten_segments(many)

    assert len(found["segments"]) == allocator.MAX_SEGMENTS
    assert found["left_out"] == 1000


class Wrapper:
    """As vLLM's WorkerWrapperBase: one in each worker process."""

    def __init__(self, rank: int) -> None:
        self.global_rank = rank

    def execute_model(self, output: object) -> object:
        return output


@pytest.fixture
def ranks(allocator: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The probe over two ranks whose processes are named as the engine names them."""
    found = importlib.import_module("sluice_engine.ranks")
    wrapper = type("WorkerWrapperBase", (Wrapper,), {})
    monkeypatch.setitem(sys.modules, found.WORKER_BASE, SimpleNamespace(WorkerWrapperBase=wrapper))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=make_cuda()))
    monkeypatch.setenv(ring.RING_VARIABLE, str(tmp_path / ring.FILE_NAME))
    monkeypatch.setattr(
        found.multiprocessing, "current_process", lambda: SimpleNamespace(name="VllmWorker-1")
    )
    found.follow_ranks()
    found.follow_ranks()
    return wrapper


def test_the_devices_of_several_processes_are_summed(ranks: Any, tmp_path: Path) -> None:
    ring.RingWriter(str(tmp_path / ring.FILE_NAME), blocks=0, block_size=0, engine="vllm")
    reader = RingReader(str(tmp_path / ring.FILE_NAME))
    workers = [ranks(0), ranks(1)]
    assert [worker.execute_model("step") for worker in workers] == ["step", "step"]

    found = reader.read_allocator()

    assert found is not None
    assert (found.reserved_bytes, found.ratio) == (2000, 0.25)
    reader.ask_for_segments()
    for worker in workers:
        worker.execute_model("step")
    assert sorted(path.name for path in tmp_path.glob("segments*")) == ["segments.0.json", "segments.1.json"]
    reader.close()


def test_a_probe_that_fails_is_given_up_and_the_step_goes_on(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(sys.modules["torch"].cuda, "memory_stats", refuse)
    worker = ranks(0)

    assert [worker.execute_model(number) for number in range(3)] == [0, 1, 2]


def test_the_core_itself_makes_no_ring_of_a_rank(
    ranks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["sluice_engine.ranks"]
    monkeypatch.setattr(module.multiprocessing, "current_process", lambda: SimpleNamespace(name="EngineCore"))

    ranks(0).execute_model("step")

    assert list(tmp_path.glob("*.ring")) == []
