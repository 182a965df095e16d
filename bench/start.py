"""How long an engine takes from its start to `/health`, and what the control plane weighs at rest.

    python -m bench.start [--quick] [--model DIR] [--no-control]

Ready ratios: in turn the same command by hand, the first replica under a fresh node host (its fork server
imports first), and a second replica of that runtime. Medians of the ratios of each round.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench._control import measure_control
from bench._figures import print_figure, say
from launcher.demo_model import find_demo_model, is_complete
from launcher.environments import ensure_engine, install_plugin
from launcher.progress import Progress
from pool.env import env_path
from pool.ports import EngineSpec, RuntimeRef
from tests.fakes.tiny_model import make_tiny_model
from workers.engines.vllm import VllmDriver
from workers.hosts import NodeHost, ensure_node_host

ROUNDS, QUICK_ROUNDS = 5, 2
READY_LIMIT, PREIMPORTED_LIMIT = 1.05, 0.5
CONTROL_LIMIT_MB, CONTROL_LIMIT_CPU = 900.0, 0.03
START_LIMIT_S = 300.0
SETTINGS = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 32,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "cpu_threads": 1,
}


@dataclass(frozen=True)
class Round:
    bare_s: float
    first_s: float
    second_s: float


@dataclass
class Bench:
    folder: Path
    runtime: RuntimeRef
    model: Path
    count: int = 0

    def run_round(self) -> Round:
        bare = self._time_bare()
        self.count += 1
        engines = f"e{self.count}"
        host = ensure_node_host(self.folder / engines, socket_path=self.folder / f"{engines}.sock")
        try:
            first = self._time_spawn(host, engines)
            second = self._time_spawn(host, engines)
        finally:
            self._end(host)
        return Round(bare, first, second)

    def _make_spec(self, engines: str) -> EngineSpec:
        self.count += 1
        return EngineSpec(
            replica_id=f"b{self.count}",
            generation=1,
            runtime=self.runtime,
            model_path=str(self.model),
            served_model_name="bench",
            settings=SETTINGS,
            address=f"unix:{self.folder}/b{self.count}.sock",
            engines_dir=str(self.folder / engines),
            compile_dir=str(self.folder / "compile" / "vllm" / "bench"),
            engine_key="bench",
        )

    def _time_bare(self) -> float:
        """The same flags and environment without anything of ours: no plug-in, no fork."""
        spec = self._make_spec("bare")
        spec = replace(spec, runtime=replace(spec.runtime, pythonpath=()))
        driver = VllmDriver()
        driver.prepare(spec)
        command = driver.build_command(spec)
        env = {name: value for name, value in command.env.items() if name != "SLUICE_ENGINE_FORK"}
        started = time.monotonic()
        with (Path(spec.directory) / "engine.log").open("wb") as log:
            process = subprocess.Popen(
                command.argv, env=env, cwd=command.cwd, stdout=log, stderr=log, start_new_session=True
            )
        try:
            return _wait_ready(spec, started, lambda: process.poll() is None)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _time_spawn(self, host: NodeHost, engines: str) -> float:
        spec = self._make_spec(engines)
        driver = VllmDriver()
        started = time.monotonic()
        driver.prepare(spec)
        host.spawn(spec, command=driver.build_command(spec))

        def alive() -> bool:
            found = host.find_engine(spec.replica_id, generation=1)
            return found is not None and found.running

        return _wait_ready(spec, started, alive)

    def _end(self, host: NodeHost) -> None:
        host.shut_down(stop_engines=True, grace_s=0)
        deadline = time.monotonic() + 10
        while Path(host.socket_path).exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def main() -> int:
    options = _parse_options()
    with tempfile.TemporaryDirectory(prefix="sl-") as folder:
        bench = Bench(Path(folder), _find_runtime(), _find_model(options.model, Path(folder)))
        say(f"model {bench.model}")
        say("one round to fill the caches, not counted")
        bench.run_round()
        rounds = []
        for number in range(QUICK_ROUNDS if options.quick else ROUNDS):
            rounds.append(bench.run_round())
            say(f"round {number + 1}: {rounds[-1]}")
    good = _print_ratios(rounds)
    if not options.no_control:
        at_rest = measure_control()
        pss, cpu = (None, None) if at_rest is None else (at_rest.pss_mb, at_rest.cpu_ratio)
        good &= print_figure("start", "control_pss_mb", pss, unit="MB", limit=CONTROL_LIMIT_MB)
        good &= print_figure("start", "control_cpu_ratio", cpu, unit="ratio", limit=CONTROL_LIMIT_CPU)
    return 0 if good else 1


def _print_ratios(rounds: list[Round]) -> bool:
    ready = statistics.median(one.first_s / one.bare_s for one in rounds)
    preimported = statistics.median(one.second_s / one.bare_s for one in rounds)
    for name, value in (
        ("bare_ready_s", statistics.median(one.bare_s for one in rounds)),
        ("first_ready_s", statistics.median(one.first_s for one in rounds)),
        ("preimported_ready_s", statistics.median(one.second_s for one in rounds)),
    ):
        print_figure("start", name, round(value, 2), unit="s")
    good = print_figure(
        "start", "ready_ratio", round(ready, 3), unit="ratio", against="bare", limit=READY_LIMIT
    )
    return good & print_figure(
        "start",
        "ready_ratio_preimported",
        round(preimported, 3),
        unit="ratio",
        against="bare",
        limit=PREIMPORTED_LIMIT,
    )


def _wait_ready(spec: EngineSpec, started: float, alive: Callable[[], bool]) -> float:
    driver = VllmDriver()
    while not driver.read_health(spec.address, engine_key="", timeout_s=2.0).answers:
        waited = time.monotonic() - started
        if waited > START_LIMIT_S or not alive():
            log = (Path(spec.directory) / "engine.log").read_text()
            raise SystemExit(f"the engine did not start in {waited:.0f} s:\n{log[-2000:]}")
        time.sleep(0.05)
    return time.monotonic() - started


def _find_runtime() -> RuntimeRef:
    progress = Progress(sys.stderr)
    engine = ensure_engine(progress, "cpu")
    python = env_path("SLUICE_TEST_ENGINE_PYTHON", engine.python)
    plugin = install_plugin(engine, progress)
    return RuntimeRef("vllm", "vllm", str(python), (str(plugin),))


def _find_model(given: Path | None, folder: Path) -> Path:
    """The demo model where it was converted before, else a tiny one: imports are nearly all of a start."""
    if given is not None:
        return given
    demo = find_demo_model()
    return demo if is_complete(demo) else make_tiny_model(folder / "model")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--no-control", action="store_true", help="ready ratios only")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
