"""kill -9 of each process while a stream runs: engines serve on, the truth comes back, nothing starts twice."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Any

import pytest
from django.utils import timezone

from tests.journeys.installation import Installed, Process, phases_in, send, wait_until
from tests.journeys.streams import Stream

TRUTH_S = 10.0
# A token of the simulated engine takes 12 ms.
STREAM_TOKENS = 450
OWN_PROCESSES = ("valkey", "postgres", "web", "gateway", "control", "telemetry", "worker")


@pytest.mark.parametrize(
    "victim", ["web", "worker", "nodehost", "control", "telemetry", "valkey", "postgres", "gateway"]
)
def test_a_killed_process_costs_no_engine_and_no_stream_fc23(
    sluice: Installed, victim: str, record_property: Any
) -> None:
    (engine,) = sluice.engines()
    (before,) = sluice.replicas(phase="ready")
    starts = sluice.count_starts()
    stream = Stream(sluice, tokens=STREAM_TOKENS)
    stream.wait_begun()
    killed = sluice.find(victim)

    send(killed.pid, signal.SIGKILL)
    at = timezone.now()
    truth_s = wait_until(lambda: is_true_again(sluice, victim, killed, at), limit_s=TRUTH_S, what=victim)
    stream.finish()

    record_property(f"truth_after_{victim}_s", round(truth_s, 1))
    print(f"{victim}: the truth is back after {truth_s:.1f} s")  # noqa: T201
    if victim == "gateway":
        assert 0 < len(stream.events) < STREAM_TOKENS
        assert "[DONE]" not in stream.events
    else:
        assert stream.ended_well, (stream.error, stream.events[-1:])
        assert len(stream.events) >= STREAM_TOKENS
    (after,) = sluice.replicas(phase="ready")
    assert sluice.engines() == [engine]
    assert (after["id"], after["generation"], after["pid"]) == (
        before["id"],
        before["generation"],
        engine.pid,
    )
    assert sluice.count_starts() == starts
    wait_until(lambda: not sluice.zombies(), limit_s=15, what="no zombies")


def is_true_again(sluice: Installed, victim: str, killed: Process, at: datetime) -> bool:
    """Every process runs, the victim as another one, and all that the console says was said after the kill."""
    if sluice.find(victim) == killed or killed.alive:
        return False
    if not all(sluice.find(name).alive for name in OWN_PROCESSES):
        return False
    status = sluice.get("status/")
    (node,) = status["nodes"]
    assert (node["phase"], node["facts"]["worker_pid"]) == ("ready", sluice.find("worker").pid)
    assert phases_in(status) == ["ready"]
    (gateway,) = [row for row in status["gateways"] if row["gone_at"] is None]
    assert gateway["pid"] == sluice.find("gateway").pid
    ages = [node["lease"], gateway["seen"], *(loop["beat"] for loop in status["loops"])]
    assert all(datetime.fromisoformat(age["at"]) > at for age in ages), ages
    return True
