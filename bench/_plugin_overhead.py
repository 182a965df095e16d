"""What the step hook takes of a real engine's steps: SmolLM2, 16 requests in flight, by counters in the engine itself.

    python -m bench._plugin_overhead [--rounds N]

The ratio is of thread time to the time of the steps, so that other load on the machine makes it smaller, not larger:
beside it stand the microseconds that a step costs, which no load changes much.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench._figures import print_figure, say
from launcher.demo_model import find_demo_model, is_complete
from launcher.environments import ensure_engine, install_plugin
from launcher.progress import Progress
from pool.env import env_path
from pool.ports import EngineSpec, RuntimeRef
from workers.engine_ring import OwnCost, RingReader
from workers.engines import http
from workers.engines.vllm import VllmDriver
from workers.hosts import NodeHost, ensure_node_host
from workers.plugin.sluice_engine.ring import FILE_NAME

LIMIT_RATIO = 0.01
IN_FLIGHT, TOKENS, ROUNDS = 16, 64, 4
START_LIMIT_S, ANSWER_LIMIT_S = 300.0, 300.0
SETTINGS: dict[str, object] = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": IN_FLIGHT,
    "kv_cache_memory_bytes": 256 << 20,
    "enforce_eager": True,
    "cpu_threads": 1,
}


@dataclass(frozen=True)
class Overhead:
    """Between two readings of the counters. `steps`: those in between; `failures` of the hook."""

    own_s: float
    scan_s: float
    step_s: float
    steps: int
    scans: int
    failures: int

    @property
    def ratio(self) -> float | None:
        return self.own_s / self.step_s if self.step_s else None

    def per_step_us(self) -> float | None:
        return (self.own_s - self.scan_s) / self.steps * 1e6 if self.steps else None

    def per_scan_us(self) -> float | None:
        return self.scan_s / self.scans * 1e6 if self.scans else None


def measure_overhead(rounds: int = ROUNDS) -> Overhead:
    """Starts an engine, drives it and ends it. Raises SystemExit without the demo model or without a ring."""
    if not is_complete(find_demo_model()):
        raise SystemExit("the demo model is not on this machine: `./sluice up` makes it")
    with tempfile.TemporaryDirectory(prefix="sl-") as folder, _start_engine(Path(folder)) as spec:
        reader = RingReader(f"{spec.directory}/{FILE_NAME}")
        if reader.missing:
            raise SystemExit(reader.missing)
        _drive(spec, 0)
        reader.watch(600.0)
        before, first = _read(reader)
        for number in range(rounds):
            _drive(spec, number + 1)
        after, last = _read(reader)
    return Overhead(
        after.own_s - before.own_s,
        after.scan_s - before.scan_s,
        after.step_s - before.step_s,
        last - first,
        after.scans - before.scans,
        after.failures,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return 0 if print_overhead(measure_overhead(parser.parse_args().rounds)) else 1


def print_overhead(found: Overhead) -> bool:
    for name, value in (("plugin_step_us", found.per_step_us()), ("plugin_scan_us", found.per_scan_us())):
        print_figure("telemetry", name, None if value is None else round(value, 1), unit="us")
    step_ms = found.step_s / found.steps * 1e3 if found.steps else None
    print_figure("telemetry", "engine_step_ms", None if step_ms is None else round(step_ms, 2), unit="ms")
    ratio = found.ratio if not found.failures else None
    return print_figure(
        "telemetry",
        "plugin_step_overhead_ratio",
        None if ratio is None else round(ratio, 5),
        unit="ratio",
        against="time of the steps",
        limit=LIMIT_RATIO,
    )


def _read(reader: RingReader) -> tuple[OwnCost, int]:
    cost, newest = reader.read_cost(), reader.read_newest_step()
    if cost is None or newest is None:
        raise SystemExit("the engine made no step")
    return cost, newest.sequence


def _drive(spec: EngineSpec, number: int) -> None:
    def ask(which: int) -> None:
        body = {
            "model": spec.served_model_name,
            "prompt": f"{number} {which}: tell of a hill and of the sheep on it.",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 0,
        }
        answer = http.call(
            spec.address, "/v1/completions", engine_key="bench", body=body, timeout_s=ANSWER_LIMIT_S
        )
        if answer.status != 200:
            raise SystemExit(f"the engine answered {answer.status}")

    say(f"round {number}: {IN_FLIGHT} × {TOKENS} tokens")
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(ask, range(IN_FLIGHT)))


@contextmanager
def _start_engine(folder: Path) -> Iterator[EngineSpec]:
    host = ensure_node_host(folder / "engines", socket_path=folder / "nodehost.sock")
    spec = EngineSpec(
        replica_id="b1",
        generation=1,
        runtime=_find_runtime(),
        model_path=str(find_demo_model()),
        served_model_name="bench",
        settings=SETTINGS,
        address=f"unix:{folder}/b1.sock",
        engines_dir=str(folder / "engines"),
        compile_dir=str(folder / "compile" / "vllm" / "bench"),
        engine_key="bench",
    )
    try:
        driver = VllmDriver()
        driver.prepare(spec)
        host.spawn(spec, command=driver.build_command(spec))
        _wait_ready(driver, spec)
        yield spec
    finally:
        _end(host)


def _wait_ready(driver: VllmDriver, spec: EngineSpec) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not driver.read_health(spec.address, engine_key="bench", timeout_s=2.0).answers:
        if time.monotonic() > deadline:
            raise SystemExit("the engine did not start")
        time.sleep(0.1)


def _end(host: NodeHost) -> None:
    host.shut_down(stop_engines=True, grace_s=0)
    deadline = time.monotonic() + 10
    while Path(host.socket_path).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _find_runtime() -> RuntimeRef:
    progress = Progress(sys.stderr)
    engine = ensure_engine(progress, "cpu")
    python = env_path("SLUICE_TEST_ENGINE_PYTHON", engine.python)
    return RuntimeRef("vllm", "vllm", str(python), (str(install_plugin(engine, progress)),))


if __name__ == "__main__":
    sys.exit(main())
