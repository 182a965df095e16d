"""The engines that the suite runs on: the fake, the simulated one and a real vLLM with a tiny model."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pool.ports import Command, EngineDriver, EngineProcess, EngineSpec, RuntimeRef
from tests.engine_runtime import find_test_runtime
from tests.fakes.tiny_model import make_tiny_model
from workers.engines.sim import SimDriver
from workers.engines.vllm import VllmDriver, remove_stale_socket
from workers.hosts import HostUnreachable, NodeHost, ensure_node_host

SERVED = "tiny"
KEY = "canary-engine-key-0123456789abcdef"
START_LIMIT_S = 180.0
SETTINGS = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "cpu_threads": 1,
}


class FakeDriver(VllmDriver):
    """The fake speaks vLLM's API; only its command differs."""

    kind = "fake"

    def prepare(self, spec: EngineSpec) -> bool:
        Path(spec.directory).mkdir(parents=True, exist_ok=True)
        remove_stale_socket(spec.address)
        return True

    def build_command(self, spec: EngineSpec) -> Command:
        uds = spec.address.removeprefix("unix:")
        argv = [sys.executable, "-m", "tests.fakes.fake_engine", "--uds", uds, "--switch", f"model={SERVED}"]
        return Command((*argv, "--switch", "max_ctx=1024"), {"PATH": "/usr/bin:/bin"}, str(Path.cwd()))


@dataclass(frozen=True)
class Running:
    driver: EngineDriver
    host: NodeHost
    spec: EngineSpec

    @property
    def address(self) -> str:
        return self.spec.address

    def process(self) -> EngineProcess:
        found = self.host.find_engine(self.spec.replica_id, generation=self.spec.generation)
        assert found is not None
        return found

    def read_log(self) -> str:
        return Path(self.process().log_path).read_text()


@dataclass
class Fleet:
    """Starts engines of one kind under one node host."""

    folder: Path
    driver: EngineDriver
    runtime: RuntimeRef
    host: NodeHost
    count: int = 0

    def start(self, *, model: str = "model", wait: bool = True, **settings: Any) -> Running:
        self.count += 1
        name = f"{self.driver.kind}{self.count}"
        spec = EngineSpec(
            replica_id=name,
            generation=1,
            runtime=self.runtime,
            model_path=str(self.folder / model),
            served_model_name=SERVED,
            settings={**SETTINGS, **settings},
            address=f"unix:{self.folder}/{name}.sock",
            engines_dir=str(self.folder / "engines"),
            compile_dir=str(self.folder / "compile" / self.runtime.name / "release"),
            engine_key=KEY,
        )
        self.driver.prepare(spec)
        self.host.spawn(spec, command=self.driver.build_command(spec))
        running = Running(self.driver, self.host, spec)
        if wait:
            wait_answers(running)
        return running


def wait_answers(running: Running) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not running.driver.read_health(running.address, engine_key=KEY).answers:
        assert running.process().running, running.read_log()[-3000:]
        assert time.monotonic() < deadline, running.read_log()[-3000:]
        time.sleep(0.05)


def wait_ended(running: Running, *, limit_s: float = 60.0) -> EngineProcess:
    deadline = time.monotonic() + limit_s
    while (process := running.process()).running:
        assert time.monotonic() < deadline, running.read_log()[-3000:]
        time.sleep(0.05)
    return process


def _make_fleet(kind: str, folder: Path) -> Fleet:
    host = ensure_node_host(folder / "engines", socket_path=folder / "nodehost.sock")
    if kind == "vllm":
        make_tiny_model(folder / "model")
        return Fleet(folder, VllmDriver(), find_test_runtime(), host)
    driver: EngineDriver = SimDriver() if kind == "sim" else FakeDriver()
    return Fleet(folder, driver, RuntimeRef(kind, kind, sys.executable), host)


@pytest.fixture(scope="session", params=["fake", "sim", pytest.param("vllm", marks=pytest.mark.engine)])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="sl-"))
    made = _make_fleet(request.param, folder)
    yield made
    with contextlib.suppress(HostUnreachable):
        made.host.shut_down(stop_engines=True, grace_s=0)
    deadline = time.monotonic() + 10
    while (folder / "nodehost.sock").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def engine(fleet: Fleet) -> Running:
    """One engine that tests share: they leave it serving."""
    return fleet.start()
