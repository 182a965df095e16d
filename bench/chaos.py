"""Mixed requests with random cancels, dying engines and changing tables: afterwards every gauge must be zero (FC-24).

    python -m bench.chaos [--count 100000] [--clients N] [--seed N]

The gateway, its engines and its clients share one process; each answer is checked as it comes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench._bar import Bar
from bench._figures import print_figure, say
from tests.pool.gateway.chaos import Chaos, count_descriptors
from tests.pool.gateway.leaks import find_leftovers
from tests.pool.gateway.rig import Rig

COUNT = 100_000
WARM_UP_COUNT = 2_000
LEAK_LIMIT_BYTES = 64 << 20
# Connections that the pools hold.
DESCRIPTORS_LIMIT = 64


async def run(count: int, clients: int, seed: int, folder: Path) -> bool:
    rig = Rig(folder)
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
    chaos, bar, started_s = Chaos(rig, seed=seed), Bar(), time.monotonic()
    await chaos.start()
    await chaos.run(min(count, WARM_UP_COUNT), clients=clients)
    await find_leftovers(rig)
    before = (len(asyncio.all_tasks()), count_descriptors(), read_rss())
    try:
        await chaos.run(
            count, clients=clients, on_progress=lambda done: bar.show(done / count, f"{done} requests")
        )
        await chaos.heal()
    finally:
        bar.end()
    leftovers = await find_leftovers(rig)
    gc.collect()
    after = (len(asyncio.all_tasks()), count_descriptors(), read_rss())
    await rig.stop()
    for text in (*leftovers, *faults):
        say(text)
    say(f"seed {seed}, {time.monotonic() - started_s:.0f} s: {dict(sorted(chaos.outcomes.items()))}")
    figures = (
        ("leftovers", len(leftovers), "count", 0),
        ("faults_in_callbacks", len(faults), "count", 0),
        ("tasks_left", after[0] - before[0], "count", 0),
        ("descriptors_left", after[1] - before[1], "count", DESCRIPTORS_LIMIT),
        ("memory_left", after[2] - before[2], "bytes", LEAK_LIMIT_BYTES),
    )
    good = True
    for name, value, unit, limit in figures:
        good = print_figure("chaos", name, value, unit=unit, limit=limit) and good
    return good


def read_rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as folder:
        good = uvloop.run(run(arguments.count, arguments.clients, seed, Path(folder)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
