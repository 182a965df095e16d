"""How long a new routing table holds the gateway's loop: `python -m bench._swap REPLICAS`, milliseconds on stdout.

In a process of its own, so that it runs the modules that the gateway runs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.gateway import SECRET, make_table
from pool.domain.routing_table import to_bytes
from pool.gateway.config import Config
from pool.gateway.routes import Routes

ROUNDS = 10


def measure_swap(replicas: int) -> float:
    """Of `Routes.apply`, which is all that the loop does; a thread has read the bytes. Median, thread CPU time."""
    with tempfile.TemporaryDirectory() as name:
        routes = Routes(Config(secret=SECRET, data_dir=Path(name)))
        spent_ms = []
        for version in range(1, ROUNDS + 1):
            # Another replica leaves with each, and the one that had left is back: both releases change.
            newer = make_table([1, 2], replicas=replicas, version=version, without=version)
            table = routes.read(to_bytes(newer, SECRET))
            assert table is not None
            started_s = time.thread_time()
            routes.apply(table, now_s=time.monotonic())
            spent_ms.append((time.thread_time() - started_s) * 1000)
        return statistics.median(spent_ms[1:])


if __name__ == "__main__":
    sys.stdout.write(f"{measure_swap(int(sys.argv[1])):.3f}\n")
