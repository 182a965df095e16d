"""Three gateway processes on one port, as they run in production, and a client that knows which one it talks to."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis.asyncio

from launcher.servers import RunningServer, start_valkey
from pool.domain.routing_table import RoutingTable, to_bytes
from tests.pool.gateway.rig import SECRET, Connection, Response, Rig, chat_request

ROOT = Path(__file__).parents[3]
PREFIX = "sluice:test"
COUNT = 3
DEADLINE_S = 20.0


class Pack:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-gw-", dir="/tmp"))
        self.valkey = self._start_valkey()
        self.redis = redis.asyncio.Redis.from_url(self.valkey.url)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            rig.port = self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.lines: dict[str, list[Connection]] = {}
        """Process → kept connections to it. A process is named by what its request ids begin with."""

    async def start(self, table: RoutingTable) -> None:
        """Serves once every process has the table and knows of the others."""
        await self.publish(table)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "SLUICE_SECRET_KEY": SECRET,
            "SLUICE_DATA_DIR": str(self.folder),
            "SLUICE_GATEWAY_PORT": str(self.port),
            "SLUICE_INSTALLATION": "test",
            "SLUICE_REDIS_URL": self.valkey.url,
        }
        command = [sys.executable, "-m", "tests.pool.gateway.short_minutes", "--workers", str(COUNT)]
        self.process = await asyncio.to_thread(subprocess.Popen, command, env=environment, cwd=self.folder)
        await self.until(self._is_whole)

    async def publish(self, table: RoutingTable) -> None:
        content: dict[Any, Any] = {
            "epoch": table.epoch, "version": table.version, "bytes": to_bytes(table, SECRET),
        }  # fmt: skip
        await self.redis.hset(f"{PREFIX}:table", mapping=content)
        await self.redis.publish(f"{PREFIX}:table", f"{table.epoch}.{table.version}")

    async def dial(self, *counts: int) -> list[str]:
        """So many kept connections to each process; returns the processes' names in the order of `counts`."""
        async with asyncio.timeout(DEADLINE_S):
            while sorted(map(len, self.lines.values())) < [1] * COUNT or len(self.lines) < COUNT:
                await self._dial_one()
            names = list(self.lines)
            while any(len(self.lines[name]) < count for name, count in zip(names, counts, strict=True)):
                await self._dial_one()
        for name, count in zip(names, counts, strict=True):
            for spare in self.lines[name][count:]:
                spare.close()
            del self.lines[name][count:]
        return names

    async def _dial_one(self) -> None:
        connection = await self.rig.connect()
        connection.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await connection.read_response()
        self.lines.setdefault(name_process(answer), []).append(connection)

    async def ask(self, connection: Connection, **more: Any) -> Response:
        connection.send(chat_request(**more))
        return await connection.read_response()

    async def read_states(self) -> dict[str, dict[str, Any]]:
        """By gateway id, what each process tells the pages."""
        stored: Any = await self.redis.hgetall(f"{PREFIX}:gateway-state")
        return {name.decode(): json.loads(content) for name, content in stored.items()}

    async def until(self, holds: Callable[[dict[str, dict[str, Any]]], Any]) -> dict[str, dict[str, Any]]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                states = await self.read_states()
                if holds(states):
                    return states
                await asyncio.sleep(0.05)

    def list_workers(self) -> dict[str, int]:
        """Gateway id → process id, from the locks that the processes hold."""
        files = (self.folder / "gateway").glob(f"listens-{self.port}.*.lock")
        return {
            path.name.split(".")[1]: int(path.read_text().split()[0]) for path in files if path.read_text()
        }

    def stop_valkey(self) -> None:
        self.valkey.stop()

    def restart_valkey(self) -> None:
        self.valkey = self._start_valkey()

    async def stop(self) -> None:
        await self.redis.aclose()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.valkey.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_valkey(self) -> RunningServer:
        return start_valkey(self.folder / "valkey", self.folder / "run", durable=False)

    @staticmethod
    def _is_whole(states: dict[str, dict[str, Any]]) -> bool:
        return len(states) == COUNT and all(
            one["models"]
            and one["sharing"]["processes"] == COUNT
            and len(one["sharing"]["others"]) == COUNT - 1
            for one in states.values()
        )


@asynccontextmanager
async def run_pack(rig: Rig) -> AsyncIterator[Pack]:
    pack = Pack(rig)
    try:
        yield pack
    finally:
        await pack.stop()


def name_process(answer: Response) -> str:
    found = re.match(r"req-[0-9a-f]{12}", answer.headers["x-request-id"])
    assert found is not None
    return found[0]
