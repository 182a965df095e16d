"""`python -m workers.control`: the loops as threads, and a Celery worker with beat for short jobs.

The loops start first and need no Redis; the Celery worker in the main thread waits for it as long as it takes.
"""

from __future__ import annotations

import console.boot  # isort: skip  # noqa: F401

import os
import sys
from datetime import datetime

from django.conf import settings
from kombu.exceptions import OperationalError

from pool.env import env_int
from pool.metrics_listener import MetricsListener, make_address
from pool.reconcilers import gateways, nodes, replicas, rollouts
from pool.reconcilers.loop import Listener, Loop, monotonic_watch
from pool.reconcilers.slo import SloPass
from pool.services.delivery import connect
from pool.services.notices import send_due
from pool.services.wakeups import list_probe_targets, note_probe_sent
from workers.celery_main import run_celery, start_beat
from workers.control_metrics import fill_control
from workers.tasks import probe_queue
from workers.wake import WAKE


def main() -> int:
    client = connect(settings.REDIS_URL)
    WAKE.loops = [
        Loop("replicas", replicas.run_pass),
        Loop("nodes", nodes.make_pass(monotonic_watch())),
        Loop("gateways", lambda now: gateways.run_pass(now, client=client)),
        Loop("probes", send_probes, longest_wait_s=2.0),
        Loop("rollouts", rollouts.run_pass),
        Loop("guard", rollouts.run_guard),
        Loop("slo", SloPass()),
        Loop("notices", send_due),
    ]
    listener, beats = Listener(WAKE.loops), gateways.BeatReader(settings.REDIS_URL)
    for loop in WAKE.loops:
        loop.start()
    listener.start()
    beats.start()
    start_beat()
    port = env_int("SLUICE_CONTROL_METRICS_PORT", 9311, minimum=0, maximum=65535)
    MetricsListener(make_address(port), lambda page: fill_control(page, WAKE.loops, client)).start()
    code = run_celery(["--queues", "control", "--hostname", f"control@{os.uname().nodename}"])
    for loop in WAKE.loops:
        loop.stop()
    return code


def send_probes(now: datetime) -> dict[str, object]:
    """One probe per node and 10 s; without Redis nothing is sent and nothing is said of the queues."""
    sent: list[str] = []
    for node in list_probe_targets(now):
        try:
            probe_queue.apply_async(
                kwargs={"node": node, "sent_at": now.isoformat()}, queue=f"node.{node}", retry=False
            )
        except (OperationalError, OSError) as exc:
            return {"sent": sent, "problem": str(exc)}
        note_probe_sent(node, now=now)
        sent.append(node)
    return {"sent": sent}


if __name__ == "__main__":
    sys.exit(main())
