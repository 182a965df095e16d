"""The channel of open cells on a Redis that hangs: it takes connections and answers nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from console.live import telemetry_channel
from console.live.telemetry_channel import OpenCell, listen_for_cells


class Heard:
    def __init__(self) -> None:
        self.told: list[bool] = []
        self.downs = asyncio.Event()

    def take_cells(self, cells: Iterable[OpenCell]) -> None: ...

    def notice_gap(self) -> None: ...

    def set_up(self, is_up: bool) -> None:
        self.told.append(is_up)
        if self.told.count(False) >= 3:
            self.downs.set()


async def test_a_redis_that_hangs_is_never_said_to_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_installation(_: Callable[[], str]) -> str:
        return "i-test"

    monkeypatch.setattr(telemetry_channel, "run_in_thread", find_installation)
    monkeypatch.setattr(telemetry_channel, "SILENCE_S", 0.05)
    monkeypatch.setattr(telemetry_channel, "RETRY_S", 0.01)
    heard, taken = Heard(), list[asyncio.StreamWriter]()

    async with asyncio.timeout(20):
        server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        listening = asyncio.create_task(listen_for_cells(heard, url=f"redis://127.0.0.1:{port}/0"))
        await heard.downs.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        server.close()
        for writer in taken:
            writer.close()
            await writer.wait_closed()

    assert set(heard.told) == {False}
