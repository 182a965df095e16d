"""Several gateway processes' limits and views in one test, joined by a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from launcher.servers import RunningServer, start_valkey
from pool.domain.gateway_settings import ModelSettings
from pool.domain.routing_table import KeyRoute, LaneRoute
from pool.gateway.gauges import Gauges
from pool.gateway.limits import Limits
from pool.gateway.refusals import RateLimited
from pool.gateway.shared_view import SharedView
from pool.gateway.sharing import Sharing

PREFIX = "sluice:test"
KEY = KeyRoute("d" * 64, "a key", "standard", None, False, "web")


@dataclass(frozen=True)
class Model:
    name: str = "m"
    lanes: tuple[LaneRoute, ...] = ()
    settings: ModelSettings = ModelSettings()


MODEL = Model()


@dataclass
class Member:
    """One gateway process."""

    name: str
    limits: Limits
    view: SharedView
    sharing: Sharing
    task: asyncio.Task[None]
    gauges: dict[tuple[str, int], tuple[Gauges, float]]
    taken_at_s: list[float] = field(default_factory=list)

    def ask(self, key: KeyRoute, *, tokens: int = 1, model: Model = MODEL, lane: str = "short") -> bool:
        now_s = asyncio.get_running_loop().time()
        try:
            self.limits.check(key, model, lane, tokens, now_s)
        except RateLimited:
            return False
        self.taken_at_s.append(now_s)
        return True


@asynccontextmanager
async def run_member(
    name: str, url: str, *, window_s: float = 60.0, processes: int = 1
) -> AsyncIterator[Member]:
    limits = Limits(processes=processes, has_ledger=True, window_s=window_s)
    view = SharedView(name, processes=processes)
    gauges: dict[tuple[str, int], tuple[Gauges, float]] = {}
    sharing = Sharing(
        url, view, limits, prefix=lambda: PREFIX, on_gauges=lambda found, now_s: gauges.update(found)
    )
    task = asyncio.create_task(sharing.run())
    try:
        yield Member(name, limits, view, sharing, task, gauges)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def run_fleet(url: str, *, count: int = 3, window_s: float = 60.0) -> AsyncIterator[list[Member]]:
    """Returns when all have settled."""
    async with contextlib.AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(run_member(f"g{number}", url, window_s=window_s, processes=count))
            for number in range(count)
        ]
        async with asyncio.timeout(10):
            while not all(member.limits.is_settled for member in members):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield members


@contextmanager
def run_valkey() -> Iterator[RunningServer]:
    folder = Path(tempfile.mkdtemp(prefix="sluice-gw-", dir="/tmp"))
    server = start_valkey(folder / "valkey", folder / "run", durable=False)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
