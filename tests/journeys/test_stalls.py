"""The control plane stands still for longer than every lease: nobody is declared dead when it wakes (FC-21)."""

from __future__ import annotations

import signal
import time

from tests.journeys.installation import Installed, phases_in, send_all, wait_until
from tests.journeys.streams import Stream

# Three minutes, scaled 1 : 12, and more than the ten seconds of a lease.
STALL_S = 15.0
STANDING = ("control", "web", "telemetry")


def test_a_control_plane_that_stood_still_restarts_no_engine_fc21(sluice: Installed) -> None:
    engines, starts = sluice.engines(), sluice.count_starts()
    (before,) = sluice.replicas(phase="ready")
    # With PostgreSQL stopped the node cannot renew its lease either: on waking every node looks dead.
    stopped = [sluice.find(name).pid for name in STANDING] + sluice.postgres_tree()
    send_all(stopped, signal.SIGSTOP)
    try:
        stream = Stream(sluice, tokens=400)
        time.sleep(STALL_S)
        assert sluice.chat().status == 200
    finally:
        send_all(stopped, signal.SIGCONT)
    stream.finish()

    def is_true_again() -> bool:
        status = sluice.get("status/")
        assert phases_in(status) == ["ready"]
        return {node["phase"] for node in status["nodes"]} == {"ready"} and sluice.chat().status == 200

    wait_until(is_true_again, limit_s=30, what="the node is ready")
    assert stream.ended_well
    (after,) = sluice.replicas(phase="ready")
    assert (after["id"], after["generation"]) == (before["id"], before["generation"])
    assert (sluice.engines(), sluice.count_starts()) == (engines, starts)
    replaced = sluice.select("SELECT count(*) FROM pool_auditentry WHERE action = 'node.replaced'")
    assert replaced == [(0,)]
