"""A driver whose engines are the fake engine with the fault switches that a test sets."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pool.ports import Command, EngineSpec
from workers.engines.sim import SimDriver

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class FakeDriver(SimDriver):
    """`switches` apply to the next engine that is started; `starts` counts built commands."""

    switches: dict[str, object] = field(default_factory=dict)
    starts: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def build_command(self, spec: EngineSpec) -> Command:
        self.starts.append((spec.replica_id, spec.generation))
        argv = [sys.executable, "-m", "tests.fakes.fake_engine", "--key", spec.engine_key]
        if spec.address.startswith("unix:"):
            argv += ["--uds", spec.address.removeprefix("unix:")]
        else:
            parts = urlsplit(spec.address)
            argv += ["--host", str(parts.hostname), "--port", str(parts.port)]
        for name, value in {"model": spec.served_model_name, **self.switches}.items():
            argv += ["--switch", f"{name}={value}"]
        env = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PATH": "/usr/bin:/bin"}
        return Command(argv=tuple(argv), env=env, cwd=str(REPOSITORY))
