"""One streamed call to the gateway, from the event loop. Leaving the context closes the connection, which the
gateway takes as a disconnect and aborts the engine's work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httptools

from pool.domain.errors import PoolError

CONNECT_S = 3.0
SILENCE_S = 120.0
"""Longest wait for the next byte: a queue and a long prefill lie before the first one."""
PIECE_BYTES = 65_536
LONGEST_EVENT_BYTES = 1_048_576


class GatewayUnreachable(PoolError):
    code: ClassVar[str] = "gateway_unreachable"


@dataclass
class Answer:
    """What the parser has seen so far. The body's pieces wait here until they are taken."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    has_headers: bool = False
    is_complete: bool = False
    pieces: list[bytes] = field(default_factory=list)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_headers = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


class Call:
    """An answer on its way."""

    def __init__(self, reader: asyncio.StreamReader, answer: Answer, parser: Any) -> None:
        self._reader = reader
        self._answer = answer
        self._parser = parser

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    async def read_head(self) -> None:
        while not self._answer.has_headers:
            await self._feed()
        self._answer.status = self._parser.get_status_code()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives; raises GatewayUnreachable when it is cut."""
        while True:
            while self._answer.pieces:
                yield self._answer.pieces.pop(0)
            if self._answer.is_complete:
                return
            await self._feed()

    async def read_body(self, *, limit: int = PIECE_BYTES) -> bytes:
        body = b""
        async for piece in self.pieces():
            body += piece
            if len(body) > limit:
                break
        return body[:limit]

    async def _feed(self) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                piece = await self._reader.read(PIECE_BYTES)
            if not piece:
                raise GatewayUnreachable("The gateway ended the connection before the answer was complete.")
            self._parser.feed_data(piece)
        except TimeoutError as exc:
            raise GatewayUnreachable(f"The gateway was silent for {SILENCE_S:.0f} s.") from exc
        except OSError as exc:
            raise GatewayUnreachable("The connection to the gateway broke.") from exc
        except httptools.HttpParserError as exc:
            raise GatewayUnreachable("The gateway's answer is no HTTP.") from exc


@asynccontextmanager
async def open_call(
    gateway_url: str, path: str, *, key: str, body: Mapping[str, object], headers: Mapping[str, str]
) -> AsyncIterator[Call]:
    parts = urlsplit(gateway_url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as exc:
        raise GatewayUnreachable("No gateway answers. Is one started?") from exc
    try:
        writer.write(_request(path, host=f"{host}:{port}", key=key, body=body, headers=headers))
        answer = Answer()
        call = Call(reader, answer, httptools.HttpResponseParser(answer))
        await call.read_head()
        yield call
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await writer.wait_closed()


def _request(
    path: str, *, host: str, key: str, body: Mapping[str, object], headers: Mapping[str, str]
) -> bytes:
    content = json.dumps(body).encode()
    fields = {
        "host": host,
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "content-length": str(len(content)),
        "connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + content


async def read_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of an SSE stream; comments and `[DONE]` are left out. A line may come in pieces."""
    rest = b""
    async for piece in pieces:
        rest += piece
        if len(rest) > LONGEST_EVENT_BYTES:
            raise GatewayUnreachable("An event of the gateway's answer is longer than 1 MiB.")
        *lines, rest = rest.split(b"\n")
        for line in lines:
            event = _parse_line(line)
            if event is not None:
                yield event


def _parse_line(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"data:"):
        return None
    content = line.removeprefix(b"data:").strip()
    if content == b"[DONE]":
        return None
    with suppress(ValueError):
        event = json.loads(content)
        if isinstance(event, dict):
            return event
    return None
