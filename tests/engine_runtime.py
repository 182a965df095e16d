"""The engine environment for tests marked `engine`: SLUICE_TEST_ENGINE_PYTHON, else the launcher's own."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

from launcher.environments import Environment, ensure_engine, install_plugin
from launcher.progress import Progress
from pool.env import env_path
from pool.ports import RuntimeRef


@cache
def find_test_runtime() -> RuntimeRef:
    """Builds the environment where there is none, which takes minutes."""
    progress = Progress(io.StringIO())
    given = env_path("SLUICE_TEST_ENGINE_PYTHON", None)
    engine = Environment("engine-cpu", given.parent.parent, ()) if given else ensure_engine(progress, "cpu")
    plugin: Path | None = install_plugin(engine, progress)
    return RuntimeRef("vllm-cpu", "vllm", str(engine.python), (str(plugin),))
