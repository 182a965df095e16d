"""One request over a fresh connection: all that the gateway wants of web, without an HTTP library."""

import asyncio
from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlsplit

import httptools

from pool.domain.errors import PoolError

_TIMEOUT_S = 2.0
_MAX_BYTES = 64 * 1024 * 1024


class FetchFailed(PoolError):
    code: ClassVar[str] = "fetch_failed"


class _Response:
    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.complete = True


async def fetch(
    url: str, path: str, *, headers: Mapping[str, str], body: bytes | None = None
) -> tuple[int, bytes]:
    """GET, or POST with a body. Status and body of the answer. Raises FetchFailed, after 2 s at the latest."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _fetch(url, path, headers, body)
    except (OSError, TimeoutError, httptools.HttpParserError) as exc:
        raise FetchFailed(f"{url} cannot be reached.", error=type(exc).__name__) from exc


async def _fetch(url: str, path: str, headers: Mapping[str, str], body: bytes | None) -> tuple[int, bytes]:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure or None)
    try:
        method = "GET" if body is None else "POST"
        lines = [f"{method} {path} HTTP/1.1", f"host: {parts.netloc}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        response = _Response()
        parser = httptools.HttpResponseParser(response)
        while not response.complete and len(response.body) <= _MAX_BYTES:
            piece = await reader.read(65_536)
            if not piece:
                break
            parser.feed_data(piece)
        if not response.complete:
            raise FetchFailed(f"{url} broke off its answer.")
        return parser.get_status_code(), bytes(response.body)
    finally:
        writer.close()
