"""A process that leaves costs nobody a connection: several share a port, and one after the other goes under load."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.gateway.listener import open_socket, stop_handshakes
from tests.pool.gateway.rig import Rig, chat_request
from tests.pool.gateway.test_process import Child, list_children, serve, wait_until_up

RESTARTS = 20
CLIENTS = 24
REQUEST = chat_request(headers={"connection": "close"})


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path)
    yield child
    child.close()


async def ask_once(port: int) -> str:
    """On a connection of its own: `ok`, or what went wrong."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as exc:
        return f"connect: {type(exc).__name__}"
    try:
        writer.write(REQUEST)
        answer = await asyncio.wait_for(reader.read(), 15)
    except (OSError, TimeoutError) as exc:
        return f"answer: {type(exc).__name__}"
    finally:
        writer.close()
    return "ok" if answer.startswith(b"HTTP/1.1 200 ") else f"answer: {answer[:40]!r}"


async def test_fc08_processes_that_leave_under_load_drop_no_connection(rig: Rig, child: Child) -> None:
    await serve(rig, child)
    child.start("--workers", "3")
    await wait_until_up(rig)
    pids = await list_children(child.pid, count=3)
    told: Counter[str] = Counter()
    stopped = asyncio.Event()

    async def ask_on() -> None:
        while not stopped.is_set():
            told[await ask_once(child.port)] += 1

    clients = [asyncio.create_task(ask_on()) for _ in range(CLIENTS)]
    for turn in range(RESTARTS):
        leaving = pids[turn % 3]
        os.kill(leaving, signal.SIGTERM)
        renewed = await list_children(child.pid, count=3, without=leaving)
        pids[turn % 3] = next(pid for pid in renewed if pid not in pids)
        await asyncio.sleep(0.2)
    stopped.set()
    await asyncio.gather(*clients)

    assert set(told) == {"ok"}
    assert told["ok"] > 1000
    child.signal(signal.SIGTERM)
    assert await child.exit_code() == 0


async def test_who_cannot_begin_a_handshake_begins_it_at_a_sibling() -> None:
    leaving = open_socket("127.0.0.1", 0)
    leaving.listen()
    port = leaving.getsockname()[1]
    sibling = open_socket("127.0.0.1", port)
    sibling.listen(64)

    assert stop_handshakes(leaving)
    clients = [asyncio.create_task(asyncio.open_connection("127.0.0.1", port)) for _ in range(24)]
    await asyncio.sleep(0.1)
    leaving.close()
    joined = await asyncio.gather(*clients)

    assert len(joined) == 24
    for _, writer in joined:
        writer.close()
    sibling.close()
