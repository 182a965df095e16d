"""A node host of its own for each test, with engines that are stubs."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pool.ports import Command, EngineProcess, EngineSpec, ForkPlan, RuntimeRef
from workers.hosts import HostUnreachable, NodeHost, ensure_node_host

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "workers" / "plugin"
STUB = "tests.fakes.stub_engine"
ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": f"{REPOSITORY}:{PLUGIN}"}


@dataclass
class Bench:
    """The node host under test and short ways to use it."""

    folder: Path
    host: NodeHost = field(init=False)

    def __post_init__(self) -> None:
        self.host = self.ensure()

    @property
    def engines(self) -> Path:
        return self.folder / "engines"

    def ensure(self) -> NodeHost:
        self.host = ensure_node_host(self.engines, socket_path=self.folder / "nodehost.sock")
        return self.host

    def make_spec(self, replica_id: str = "r1", *, generation: int = 1) -> EngineSpec:
        return EngineSpec(
            replica_id=replica_id,
            generation=generation,
            runtime=RuntimeRef("stub", "stub", sys.executable),
            model_path="",
            served_model_name="stub",
            settings={},
            address=f"unix:{self.folder}/{replica_id}.sock",
            engines_dir=str(self.engines),
            compile_dir=str(self.folder / "compile"),
            engine_key="key-that-must-not-leak",
        )

    def spawn(
        self, replica_id: str = "r1", *arguments: str, generation: int = 1, forked: bool = False
    ) -> EngineProcess:
        plan = ForkPlan(sys.executable, STUB, "none", ENV) if forked else None
        command = Command(
            argv=(sys.executable, "-m", STUB, *arguments),
            env=ENV,
            cwd=str(REPOSITORY),
            secret_env={"SLUICE_ENGINE_KEY": "key-that-must-not-leak"},
            fork=plan,
        )
        return self.host.spawn(self.make_spec(replica_id, generation=generation), command=command)

    def find(self, replica_id: str = "r1", *, generation: int = 1) -> EngineProcess:
        found = self.host.find_engine(replica_id, generation=generation)
        assert found is not None
        return found

    def wait(
        self,
        condition: Callable[[EngineProcess], bool],
        replica_id: str = "r1",
        *,
        generation: int = 1,
        limit_s: float = 15.0,
    ) -> EngineProcess:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = self.find(replica_id, generation=generation)
            if condition(found):
                return found
            time.sleep(0.01)
        raise AssertionError(f"not in time: {found}")


@pytest.fixture
def bench() -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="sl-"))
    made = Bench(folder)
    yield made
    with contextlib.suppress(HostUnreachable):
        made.ensure().shut_down(stop_engines=True, grace_s=0)
    deadline = time.monotonic() + 10
    while (folder / "nodehost.sock").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)
