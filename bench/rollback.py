"""From the click on a rollback to the last request that any gateway sent to the candidate, under load.

    ./sluice bench rollback [--quick] [--trials N] [--gateways N]

An installation of its own with the simulated engine and four gateway processes. Each trial puts half of the traffic on
release 2 and takes it back by one POST; the moments are those that the gateways tell of themselves. A part of the
trials runs with Redis stopped. The clock starts before the POST is sent, not when it is answered.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench._bar import Bar
from bench._figures import print_figure, say
from tests.journeys.installation import Installed, make_installed, remove, send, wait_until

MODEL = "smollm2"
TRIALS, QUICK_TRIALS = 200, 20
# Each lasts as long as web's answers to gateways that ask twice a second.
REDIS_OFF_RATIO = 0.2
LIMIT_MS, REDIS_OFF_LIMIT_MS = 100.0, 2000.0
HALF, BACK = {"1": 50, "2": 50}, {"1": 100, "2": 0}
# Under load at both releases before the click.
LEAD_S = (0.3, 0.7)
# A beat follows within a second of what it tells.
BEAT_S = 1.1
READY_LIMIT_S = 120.0


@dataclass
class Load:
    """The answers of `bench._rollback_load`, as they come."""

    process: subprocess.Popen[str]
    answers: list[tuple[float, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            sent_at, release, fault = json.loads(line)
            self.answers.append((sent_at, release, fault))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(90)
        self._reader.join(10)


@dataclass(frozen=True)
class Trial:
    click_ms: float
    """From the click to the last request to the candidate; 0 where that was before the click."""
    after_write_ms: float
    """From the new table in PostgreSQL to the last request to the candidate: what the gateways' side takes."""
    accepted_ms: float
    """From the click to the answer of the POST, which waits for the gateways for a second at most."""
    written_ms: float
    """From the click to the new table in PostgreSQL."""
    applied_ms: float
    """From the click until the slowest gateway served from it."""
    again_changed: bool
    """Whether a second click wrote a plan."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="sluice bench rollback", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TRIALS} trials")
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--gateways", type=int, default=4)
    options = parser.parse_args()
    trials = options.trials or (QUICK_TRIALS if options.quick else TRIALS)
    with tempfile.TemporaryDirectory(prefix="sl-") as name:
        installed = make_installed(Path(name) / "var", SLUICE_GATEWAY_WORKERS=str(options.gateways))
        try:
            say(f"starting an installation with {options.gateways} gateway processes")
            prepare(installed, options.gateways)
            return 0 if measure(installed, trials, options.gateways) else 1
        finally:
            remove(installed)


def prepare(installed: Installed, gateways: int) -> None:
    """Two releases of the demo model, each with a ready replica; all traffic at the first."""
    installed.up("--engine", "sim")
    wait_until(lambda: installed.replicas(phase="ready"), limit_s=READY_LIMIT_S, what="release 1 is ready")
    (first,) = installed.get(f"models/{MODEL}/releases/")["results"]
    profile = first["profiles"] if isinstance(first.get("profiles"), str) else None
    wish: dict[str, Any] = {"version": first["version"], "runtime": first["runtime"], "replicas": 1}
    wish |= {"profile": profile or first.get("profile") or next(iter(first["profiles"].values()))}
    installed.post(f"models/{MODEL}/releases/", wish)
    wait_until(
        lambda: len(installed.replicas(phase="ready")) == 2, limit_s=READY_LIMIT_S, what="release 2 is ready"
    )
    wait_until(lambda: len(read_gateways(installed)) == gateways, limit_s=30, what="every gateway's beat")


def measure(installed: Installed, trials: int, gateways: int) -> bool:
    load = start_load(installed)
    away = max(3, round(trials * REDIS_OFF_RATIO))
    try:
        usual = run_trials(installed, trials, gateways)
        valkey = installed.find("valkey")
        send(valkey.pid, signal.SIGSTOP)
        try:
            time.sleep(2 * BEAT_S)
            silent = run_trials(installed, away, gateways)
        finally:
            send(valkey.pid, signal.SIGCONT)
    finally:
        load.end()
    return report(load, usual, silent)


def start_load(installed: Installed) -> Load:
    command = [sys.executable, "-m", "bench._rollback_load", "--port", str(installed.gateway_port)]
    command += ["--key", installed.key, "--model", MODEL]
    pipe = subprocess.PIPE
    return Load(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))


def run_trials(installed: Installed, count: int, gateways: int) -> list[Trial]:
    bar, found = Bar(), []
    try:
        for number in range(count):
            found.append(run_trial(installed, gateways))
            bar.show((number + 1) / count, f"{number + 1} trials")
    finally:
        bar.end()
    return found


def run_trial(installed: Installed, gateways: int) -> Trial:
    installed.post(f"models/{MODEL}/plans/", {"weights": HALF})
    wait_acknowledged(installed, read_order(installed), gateways)
    time.sleep(random.uniform(*LEAD_S))
    click_at = time.time()
    answer = installed.post(f"models/{MODEL}/rollback/", {})
    accepted_at = time.time()
    plan = answer["plan"]
    assert plan["weights"] == BACK or plan["weights"] == {"1": 100}, plan
    written_at = read_written_at(installed)
    wait_acknowledged(installed, read_order(installed), gateways)
    acknowledged_at = time.time()
    applied_at = max(one["applied_at"] for one in read_gateways(installed))
    again = installed.post(f"models/{MODEL}/rollback/", {})["plan"]
    wait_until(
        lambda: all(one["at"] > acknowledged_at + BEAT_S for one in read_gateways(installed)),
        limit_s=30,
        what="a later beat of each gateway",
    )
    last_at = find_last_sent(installed)
    return Trial(
        click_ms=max(0.0, last_at - click_at) * 1000,
        after_write_ms=max(0.0, last_at - written_at) * 1000,
        accepted_ms=(accepted_at - click_at) * 1000,
        written_ms=(written_at - click_at) * 1000,
        applied_ms=(applied_at - click_at) * 1000,
        again_changed=again["number"] != plan["number"],
    )


def read_order(installed: Installed) -> tuple[int, int]:
    ((epoch, version),) = installed.select("SELECT epoch, version FROM pool_routingstate")
    return int(epoch), int(version)


def read_written_at(installed: Installed) -> float:
    ((at,),) = installed.select("SELECT extract(epoch from changed_at) FROM pool_routingstate")
    return float(at)


def wait_acknowledged(installed: Installed, order: tuple[int, int], gateways: int) -> None:
    def all_have_it() -> bool:
        told = read_gateways(installed)
        return len(told) == gateways and all(one["order"] >= order for one in told)

    wait_until(all_have_it, limit_s=30, what=f"table {order} is in force at each gateway")


def read_gateways(installed: Installed) -> list[dict[str, Any]]:
    rows = installed.select(
        "SELECT epoch, version, extract(epoch from seen_at), extract(epoch from applied_at), report"
        " FROM pool_gatewayinstance WHERE gone_at IS NULL"
    )
    return [
        {
            "order": (epoch, version),
            "at": float(seen_at),
            "applied_at": float(applied_at or 0),
            "report": told,
        }
        for epoch, version, seen_at, applied_at, told in rows
    ]


def find_last_sent(installed: Installed) -> float:
    """To any replica of the candidate, by any gateway, in seconds since 1970."""
    candidate = [row["id"] for row in installed.replicas() if row["release"] == 2]
    told = [one["report"]["replicas"] for one in read_gateways(installed)]
    sent = [
        one[name]["last_sent_at"] for one in told for name in candidate if "last_sent_at" in one.get(name, {})
    ]
    assert sent, "no gateway sent a request to the candidate"
    return float(max(sent))


def report(load: Load, usual: list[Trial], silent: list[Trial]) -> bool:
    faults = [fault for _, _, fault in load.answers if fault]
    for fault in faults[:5]:
        say(f"lost: {fault}")
    good = True
    for trials, against, limit in ((usual, None, LIMIT_MS), (silent, "no_redis", REDIS_OFF_LIMIT_MS)):
        times = [trial.click_ms for trial in trials]
        figures = (("p50", 0.5, None), ("p99", 0.99, limit), ("max", 1.0, None))
        for name, share, bound in figures:
            figure = f"click_to_last_request_{name}_ms"
            value = round(quantile(times, share), 1)
            good &= print_figure("rollback", figure, value, unit="ms", against=against, limit=bound)
        after = [trial.after_write_ms for trial in trials]
        for name, share, _ in figures:
            value = round(quantile(after, share), 1)
            print_figure("rollback", f"write_to_last_request_{name}_ms", value, unit="ms", against=against)
        for part in ("written", "applied", "accepted"):
            value = round(quantile([getattr(trial, f"{part}_ms") for trial in trials], 0.5), 1)
            good &= print_figure("rollback", f"click_to_{part}_p50_ms", value, unit="ms", against=against)
        good &= print_figure("rollback", "trials", len(trials), unit="count", against=against)
    every = [*usual, *silent]
    again = sum(trial.again_changed for trial in every)
    good &= print_figure("rollback", "second_clicks_that_changed", again, unit="count", limit=0)
    good &= print_figure("rollback", "requests", len(load.answers), unit="count")
    return print_figure("rollback", "lost_requests", len(faults), unit="count", limit=0) and good


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of them does not pass."""
    ranked = sorted(values)
    return ranked[max(0, min(len(ranked), -(-len(ranked) * round(share * 100) // 100)) - 1)]


if __name__ == "__main__":
    sys.exit(main())
