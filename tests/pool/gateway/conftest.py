"""A rig for each test, on the event loop that the gateway ships with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.pool.gateway.rig import Rig


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    rig = Rig(tmp_path)
    yield rig
    await rig.stop()
    # An exception in a callback reaches no caller: it would only be a line in the log.
    assert not faults
