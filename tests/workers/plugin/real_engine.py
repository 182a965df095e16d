"""One real vLLM on the demo model, under a node host of its own, and calls to it."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.demo_model import find_demo_model, is_complete
from pool.ports import Command, EngineSpec
from tests.contracts.conftest import KEY, SERVED, Fleet, Running
from tests.engine_runtime import find_test_runtime
from workers.engine_ring import RingReader
from workers.engines import http
from workers.engines.vllm import VllmDriver
from workers.hosts import HostUnreachable, ensure_node_host
from workers.plugin.sluice_engine.ring import FILE_NAME

PLUGIN = Path(__file__).parents[3] / "workers" / "plugin"
# 21 blocks of 128 tokens in float32, one of them the null block.
BLOCK_BYTES = 128 * 30 * 2 * 3 * 64 * 4
SETTINGS: dict[str, Any] = {
    "max_model_len": 1024, "max_num_seqs": 16, "kv_cache_memory_bytes": 21 * BLOCK_BYTES, "dtype": "float32",
}  # fmt: skip


class FlaggedDriver(VllmDriver):
    """Further flags that no profile can set."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags

    def build_command(self, spec: EngineSpec) -> Command:
        command = super().build_command(spec)
        return replace(command, argv=(*command.argv, *self._flags))


@contextmanager
def open_fleet(*first_on_path: Path, flags: tuple[str, ...] = ()) -> Iterator[Fleet]:
    """Folders of `first_on_path` come before the installed plug-in."""
    if not is_complete(find_demo_model()):
        pytest.skip("the demo model is not on this machine: `./sluice up` makes it")
    folder = Path(tempfile.mkdtemp(prefix="sl-"))
    (folder / "model").symlink_to(find_demo_model())
    host = ensure_node_host(folder / "engines", socket_path=folder / "nodehost.sock")
    runtime = find_test_runtime()
    paths = (*(str(path) for path in first_on_path), *runtime.pythonpath)
    fleet = Fleet(folder, FlaggedDriver(*flags), replace(runtime, pythonpath=paths), host)
    try:
        yield fleet
    finally:
        with contextlib.suppress(HostUnreachable):
            host.shut_down(stop_engines=True, grace_s=0)
        deadline = time.monotonic() + 10
        while (folder / "nodehost.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        shutil.rmtree(folder, ignore_errors=True)


def open_ring(engine: Running, *, from_start: bool = True) -> RingReader:
    return RingReader(f"{engine.spec.directory}/{FILE_NAME}", from_start=from_start)


def complete(engine: Running, prompt: str, *, tokens: int = 32, request_id: str = "", **more: Any) -> Any:
    """One completion of exactly so many tokens."""
    body = {
        "model": SERVED, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more,
    }  # fmt: skip
    connection = http.open_connection(engine.address, timeout_s=120)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        if request_id:
            headers["x-request-id"] = request_id
        connection.request("POST", "/v1/completions", body=json.dumps(body), headers=headers)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        return content
    finally:
        connection.close()


def complete_many(engine: Running, count: int, *, tokens: int, prompt: str) -> None:
    """`count` requests at once, each with a prompt of its own, as `req-<number>`."""

    def ask(number: int) -> None:
        complete(engine, f"{number} {prompt}", tokens=tokens, request_id=f"req-{number}")

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(ask, range(count)))


def make_overlay(folder: Path, **added: str) -> Path:
    """A copy of the plug-in with lines added at the end of modules; it is imported instead of the installed one."""
    shutil.copytree(
        PLUGIN / "sluice_engine", folder / "sluice_engine", ignore=shutil.ignore_patterns("__pycache__")
    )
    for module, lines in added.items():
        with open(folder / "sluice_engine" / f"{module}.py", "a") as file:
            file.write(lines)
    return folder


def wait_for(condition: Callable[[], Any], what: str, *, limit_s: float = 20.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
    return found
