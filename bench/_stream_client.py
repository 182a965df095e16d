"""One streamed chat as a caller sees it: when each token came, what it cost, and how it ended."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import orjson

from bench._installation import Target

NO_LANE = "none"
"""Of a request that was refused before its length was known."""
_READ_BYTES = 65_536


@dataclass(slots=True)
class Outcome:
    """`code` is "" for an answer that came whole. Times are seconds; `ttft_s` counts from when it was due."""

    lane: str = NO_LANE
    status: int = 0
    code: str = ""
    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0


async def ask(target: Target, fields: dict[str, Any], *, due_s: float, timeout_s: float) -> Outcome:
    """Never raises for what a server may do. `due_s` is of the clock `time.perf_counter`."""
    reading = _Reading(due_s)
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(target, orjson.dumps(fields), reading)
    except TimeoutError:
        reading.outcome.code = "client_timeout"
    except (OSError, httptools.HttpParserError):
        reading.outcome.code = "connection_lost"
    return reading.judge()


async def _exchange(target: Target, body: bytes, reading: _Reading) -> None:
    parts = urlsplit(target.url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
    try:
        head = (
            f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {target.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        parser = httptools.HttpResponseParser(reading)
        reading.get_status = parser.get_status_code
        while not reading.complete and (data := await reader.read(_READ_BYTES)):
            reading.now_s = time.perf_counter()
            parser.feed_data(data)
    finally:
        writer.close()


class _Reading:
    """The parser's callbacks."""

    def __init__(self, due_s: float) -> None:
        self.outcome = Outcome()
        self.complete = False
        self.now_s = 0.0
        self.get_status: Any = None
        self._due_s = due_s
        self._last_s = 0.0
        self._done = False
        self._body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-sluice-lane":
            self.outcome.lane = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.outcome.status = self.get_status()

    def on_body(self, body: bytes) -> None:
        self._body += body
        if self.outcome.status == 200:
            *events, self._body = self._body.split(b"\n\n")
            for event in events:
                self._read(event)

    def on_message_complete(self) -> None:
        self.complete = True

    def judge(self) -> Outcome:
        outcome = self.outcome
        if not outcome.code and outcome.status != 200:
            outcome.code = _code_of(self._body) or f"status_{outcome.status}"
        elif not outcome.code and not self._done:
            outcome.code = "cut"
        return outcome

    def _read(self, event: bytes) -> None:
        """Comments keep a connection alive and say nothing."""
        if not event.startswith(b"data: "):
            return
        data = event[6:]
        if data == b"[DONE]":
            self._done = True
        elif data.startswith(b'{"error"'):
            self.outcome.code = _code_of(data) or "error_event"
        else:
            self._note(orjson.loads(data))

    def _note(self, chunk: dict[str, Any]) -> None:
        usage = chunk.get("usage")
        if usage:
            self.outcome.prompt_tokens = usage["prompt_tokens"]
            self.outcome.output_tokens = usage["completion_tokens"]
        if not any(choice["delta"].get("content") for choice in chunk["choices"]):
            return
        if self.outcome.ttft_s is None:
            self.outcome.ttft_s = self.now_s - self._due_s
        else:
            self.outcome.gaps_s.append(self.now_s - self._last_s)
        self._last_s = self.now_s


def _code_of(body: bytes) -> str:
    """ "" if it is no error of the API."""
    try:
        error = orjson.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
