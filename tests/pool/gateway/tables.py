"""Routing tables with settings of their own, and real engine processes to kill."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.routing_table import LaneRoute, ReplicaRoute, RoutingTable
from pool.domain.signing import derive_engine_key
from pool.gateway.replicas import LiveReplica
from tests.pool.gateway.rig import KEY, SECRET, make_key, make_release, make_replica, make_table

ROOT = Path(__file__).parents[3]


def tune(table: RoutingTable, *, model: dict[str, Any] | None = None, **lane: Any) -> RoutingTable:
    """`lane`: settings of the only lane."""
    route = replace(
        table.models[0],
        lanes=(LaneRoute("default", None, LaneSettings(**lane)),),
        settings=ModelSettings(**(model or {})),
    )
    return replace(table, models=(route,))


def make_one(*replicas: ReplicaRoute, model: dict[str, Any] | None = None, **lane: Any) -> RoutingTable:
    """One release of these replicas."""
    return tune(make_table(make_release(1, *replicas)), model=model, **lane)


def keep_alive(table: RoutingTable, keepalive_s: float) -> RoutingTable:
    """The usual key wants comments after so long without a byte."""
    return replace(table, keys=(make_key(KEY, keepalive_s=keepalive_s),))


def make_busy(replica: LiveReplica) -> None:
    """So that the next request goes elsewhere."""
    replica.in_flight = 1
    replica.in_flight_tokens = 1_000_000


@contextmanager
def engine_process(
    folder: Path, name: str, *switches: str
) -> Iterator[tuple[ReplicaRoute, subprocess.Popen[bytes]]]:
    """A fake engine that can be killed as a whole; see `wait_for_socket`."""
    path = folder / f"{name}.sock"
    key = derive_engine_key(SECRET, replica_id=name, generation=1)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "tests.fakes.fake_engine", "--uds", str(path), "--key", key,
            *(part for switch in (f"instance_id={name}", *switches) for part in ("--switch", switch)),
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield make_replica(name, f"unix:{path}"), process
    finally:
        process.kill()
        process.wait()


async def wait_for_socket(replica: ReplicaRoute) -> None:
    async with asyncio.timeout(15):
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(replica.address.removeprefix("unix:"))
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
