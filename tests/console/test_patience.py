"""Clients that do not get on, over real connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from console import patience
from console.bodies import Receive, Scope, Send
from console.patience import PatientHttp

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Link]]

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
LARGE_ANSWER = 8 << 20


async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
    size = LARGE_ANSWER if scope["path"] == "/large" else 2
    if scope["path"] == "/slow":
        await asyncio.sleep(0.8)
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * size})


@pytest.fixture
async def connect(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    monkeypatch.setattr(patience, "HEAD_S", 0.4)
    monkeypatch.setattr(patience, "WRITE_S", 0.4)
    options: dict[str, Any] = {"lifespan": "off", "log_config": None, "timeout_keep_alive": 5}
    server = uvicorn.Server(uvicorn.Config(answer, http=PatientHttp, **options))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    links: list[Link] = []

    async def connect() -> Link:
        links.append(await asyncio.open_connection(*listener.getsockname(), limit=1024))
        return links[-1]

    yield connect
    for _, writer in links:
        writer.transport.abort()
    server.should_exit = server.force_exit = True
    await serving


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 5.0)


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, b"\r\n"])
async def test_a_client_that_does_not_finish_its_head_is_let_go(connect: Connect, sent: bytes) -> None:
    reader, writer = await connect()
    writer.write(sent)

    assert await read_to_end(reader) == b""


async def test_a_head_that_trickles_in_has_an_end(connect: Connect) -> None:
    reader, writer = await connect()
    ended = asyncio.create_task(read_to_end(reader))
    writer.write(HEAD)
    while not ended.done():
        writer.write(b"x: y\r\n")
        await asyncio.sleep(0.05)

    assert ended.result() == b""


async def test_a_second_head_that_is_not_finished_has_an_end_too(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(HEAD + b"\r\n" + HEAD)

    assert (await read_to_end(reader)).count(b"HTTP/1.1 200") == 1


async def test_an_endless_head_is_refused(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(HEAD + b"x: " + b"a" * (2 * patience.LARGEST_HEAD_BYTES))

    assert (await asyncio.wait_for(reader.read(64), 5.0)).startswith(b"HTTP/1.1 431 ")


async def test_an_answer_may_take_longer_than_a_head(connect: Connect) -> None:
    reader, writer = await connect()
    for _ in range(2):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"xx"), 5.0)).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.6)


async def test_an_answer_that_nobody_reads_is_given_up(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.sleep(1.2)

    with pytest.raises((ConnectionError, AssertionError)):
        assert len(await read_to_end(reader)) >= LARGE_ANSWER
