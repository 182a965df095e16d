"""What the gateway costs: CPU per request and per 64-chunk stream, added delay, memory per stream, a table's swap.

    python -m bench.gateway [--quick] [--peers FOLDER …]

Everything is on: keys with limits, three lanes, admission, a split over two releases, affinity, facts to Redis. Every
peer that is found on PATH or in a given folder is measured in turn and twice, against the same two cheap engines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench._client import Load, Result, run_load
from bench._cpu import cpu_us, rss_bytes
from bench._figures import print_figure, say
from bench._peers import Contender, find_free_port, start_engines, start_peers, wait_listening
from launcher.compiling import ensure_compiled, name_compiled
from launcher.progress import Progress
from launcher.servers import start_valkey
from pool.domain.gateway_settings import LaneSettings
from pool.domain.routing_table import (
    KeyRoute,
    LaneRoute,
    ModelRoute,
    PlanRoute,
    ReleaseRoute,
    ReplicaRoute,
    RoutingTable,
    to_bytes,
)
from pool.domain.signing import digest_key

SECRET = "a-secret-for-this-benchmark-only"
KEY = "sk-sluice-benchmark"
OURS = "sluice"
ROUNDS = 2
MODERATE_RATE = 200.0
OPEN_STREAMS, STREAM_LIMIT_BYTES = 2_000, 30_000
SWAP_REPLICAS, SWAP_LIMIT_MS = 1_000, 5.0
LIMITS = {
    ("cpu_per_request_ratio", "vllm-router"): 0.75,
    ("cpu_per_request_ratio", "nginx"): 1.0,
    ("cpu_per_request_ratio", "litellm"): 0.01,
    ("cpu_per_stream_ratio", "vllm-router"): 0.4,
    ("cpu_per_stream_ratio", "nginx"): 1.0,
    ("cpu_per_stream_ratio", "litellm"): 0.01,
    ("added_p99_ratio", "nginx"): 1.5,
}


@dataclass
class Costs:
    """Of one contender, a value per round."""

    request_us: list[float] = field(default_factory=list)
    stream_us: list[float] = field(default_factory=list)
    added_p99_s: list[float] = field(default_factory=list)


def make_table(
    engines: list[int],
    *,
    replicas: int = 0,
    version: int = 1,
    open_streams: int = 0,
    without: int | None = None,
) -> RoutingTable:
    """Two releases, 90 to 10, over the engines in turn. `open_streams`: so many are let in at once.
    `without`: the number of the replica that is missing."""
    concurrency = open_streams or 64
    short = LaneSettings(
        concurrency=concurrency, weight=4, adaptive=not open_streams, queue_limit=max(64, open_streams)
    )
    lanes = (
        LaneRoute("short", 4096, short),
        LaneRoute("mid", 16_384, LaneSettings(concurrency=8, ttft_target_ms=800, weight=2)),
        LaneRoute("long", None, LaneSettings(concurrency=2, ttft_target_ms=2000)),
    )
    count = max(replicas, len(engines))
    routes = [
        ReplicaRoute(
            f"r{number:04d}", 1, f"n{number // 8}", f"http://127.0.0.1:{engines[number % len(engines)]}", None,
            32_768, max(256, open_streams), max(1_000_000, open_streams * 2_000),
        )
        for number in range(count)
    ]  # fmt: skip
    missing = None if without is None else routes[without]
    releases = tuple(
        ReleaseRoute(
            number,
            "v1",
            "balanced",
            "vllm",
            tuple(one for one in routes[number - 1 :: 2] if one is not missing),
        )
        for number in (1, 2)
    )
    plan = PlanRoute(1, {1: 90, 2: 10}, {}, {}, None)
    model = ModelRoute("m", lanes, plan, releases, 0)
    key = KeyRoute(
        digest_key(SECRET, KEY), "bench", "standard", ("m",), False, "web",
        requests_per_min=100_000_000, tokens_per_min=2_000_000_000,
    )  # fmt: skip
    return RoutingTable("bench", 1, version, (model,), (key,))


def start_ours(folder: Path, engines: list[int], redis_url: str, *, open_streams: int = 0) -> Contender:
    state = folder / "gateway"
    state.mkdir(parents=True, exist_ok=True)
    (state / "table-0.bin").write_bytes(to_bytes(make_table(engines, open_streams=open_streams), SECRET))
    port = find_free_port()
    env = os.environ | {
        "SLUICE_SECRET_KEY": SECRET,
        "SLUICE_DATA_DIR": str(folder),
        "SLUICE_GATEWAY_PORT": str(port),
        "SLUICE_REDIS_URL": redis_url,
        **name_compiled(ensure_compiled(Progress(sys.stderr))),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "pool.gateway"], env=env, stdout=log, stderr=log)
    wait_listening(process, port)
    return Contender(OURS, process, port, KEY)


def measure_cost(one: Contender, *, stream: bool, seconds: float) -> float:
    run_load(Load(one.port, one.key, stream=stream, seconds=0.5))
    before_us = cpu_us(one.process.pid)
    done = run_load(Load(one.port, one.key, stream=stream, seconds=seconds))
    spent_us = cpu_us(one.process.pid) - before_us
    _check(one.name, done)
    return spent_us / done.requests


def measure_added_p99(one: Contender, engine: Contender, *, seconds: float) -> float:
    """Over the same load straight to an engine, just before."""
    direct = run_load(Load(engine.port, rate=MODERATE_RATE, seconds=seconds))
    done = run_load(Load(one.port, one.key, rate=MODERATE_RATE, seconds=seconds))
    _check(one.name, done)
    return max(1e-6, done.quantile_s(0.99) - direct.quantile_s(0.99))


def measure_streams(folder: Path, redis_url: str) -> float:
    """Bytes per open stream of the gateway, over what it takes when it is idle."""
    engines = start_engines(2, chunks=40, gap_s=0.5)
    ports = [one.port for one in engines]
    ours = start_ours(folder, ports, redis_url, open_streams=OPEN_STREAMS)
    try:
        run_load(Load(ours.port, KEY, stream=False, seconds=1.0))
        idle_bytes = rss_bytes(ours.process.pid)
        load = Load(ours.port, KEY, stream=True, connections=OPEN_STREAMS, seconds=15.0)
        command = [sys.executable, "-m", "bench._client", json.dumps(asdict(load))]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as client:
            peak_bytes, most_open = 0, 0.0
            while client.poll() is None:
                peak_bytes = max(peak_bytes, rss_bytes(ours.process.pid))
                most_open = max(most_open, read_gauge(ours.port, "sluice_in_flight"))
                time.sleep(0.5)
    finally:
        for one in (ours, *engines):
            one.stop()
    if most_open < OPEN_STREAMS:
        raise RuntimeError(f"Only {most_open:.0f} of {OPEN_STREAMS} streams were open at once.")
    return (peak_bytes - idle_bytes) / OPEN_STREAMS


def read_gauge(port: int, name: str) -> float:
    """The sum over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def measure_swap() -> float:
    """Milliseconds of the loop's time for a table with 1,000 replicas after another."""
    env = os.environ | name_compiled(ensure_compiled(Progress(sys.stderr)))
    command = [sys.executable, "-m", "bench._swap", str(SWAP_REPLICAS)]
    return float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def report(costs: dict[str, Costs]) -> bool:
    good = True
    ours = costs[OURS]
    print_figure("gateway", "cpu_per_request_us", _mean(ours.request_us), unit="us")
    print_figure("gateway", "cpu_per_stream_us", _mean(ours.stream_us), unit="us")
    for name, peer in costs.items():
        if name == OURS:
            continue
        for figure, mine, theirs in (
            ("cpu_per_request_ratio", ours.request_us, peer.request_us),
            ("cpu_per_stream_ratio", ours.stream_us, peer.stream_us),
            ("added_p99_ratio", ours.added_p99_s, peer.added_p99_s),
        ):
            if not mine or not theirs:
                continue
            value = round(_mean(mine) / _mean(theirs), 4)
            limit = LIMITS.get((figure, name))
            good &= print_figure("gateway", figure, value, unit="ratio", against=name, limit=limit)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, no memory of open streams")
    parser.add_argument("--peers", action="append", default=[], metavar="FOLDER", help="where peers lie too")
    options = parser.parse_args()
    seconds = 2.0 if options.quick else 5.0
    path = os.pathsep.join([*options.peers, os.environ.get("PATH", ""), "/usr/sbin"])
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        valkey = start_valkey(folder / "valkey", folder / "run", durable=False)
        try:
            good = measure_all(folder, path, redis_url=valkey.url, seconds=seconds)
            good &= print_figure(
                "gateway", "table_swap_ms", round(measure_swap(), 2), unit="ms", limit=SWAP_LIMIT_MS
            )
            if not options.quick:
                per_stream = round(measure_streams(folder / "streams", valkey.url))
                good &= print_figure(
                    "gateway", "bytes_per_stream", per_stream, unit="bytes", limit=STREAM_LIMIT_BYTES
                )
        finally:
            valkey.stop()
    return 0 if good else 1


def measure_all(folder: Path, path: str, *, redis_url: str, seconds: float) -> bool:
    engines = start_engines(2)
    ports = [one.port for one in engines]
    contenders = [start_ours(folder, ports, redis_url), *start_peers(folder, ports, path=path)]
    costs = {one.name: Costs() for one in contenders}
    try:
        for turn in range(ROUNDS):
            for one in contenders:
                say(f"round {turn + 1}/{ROUNDS}: {one.name}")
                # One that takes tens of milliseconds a request needs longer for a mean that means something.
                run_s = seconds * (3 if one.name == "litellm" else 1)
                costs[one.name].request_us.append(measure_cost(one, stream=False, seconds=run_s))
                costs[one.name].stream_us.append(measure_cost(one, stream=True, seconds=run_s))
                say(
                    f"  {costs[one.name].request_us[-1]:.0f} us, {costs[one.name].stream_us[-1]:.0f} us a stream"
                )
        for _ in range(2 * ROUNDS):
            for one in contenders:
                if one.name in (OURS, "nginx", "haproxy"):
                    costs[one.name].added_p99_s.append(measure_added_p99(one, engines[0], seconds=seconds))
    finally:
        for one in (*contenders, *engines):
            one.stop()
    return report(costs)


def _check(name: str, done: Result) -> None:
    if done.errors or not done.requests:
        raise SystemExit(
            f"{name}: {done.errors} of {done.requests} requests failed, so its figures mean nothing."
        )


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    sys.exit(main())
