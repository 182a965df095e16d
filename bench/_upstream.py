"""A very cheap stand-in for an OpenAI-compatible engine: what it costs must not hide what a gateway costs.

    python -m bench._upstream PORT [CHUNKS] [GAP_S]

It checks nothing and knows no faults: no fake for tests of behaviour.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import httptools
import uvloop

_USAGE = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140}


def _reply(body: object) -> bytes:
    content = json.dumps(body, separators=(",", ":")).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(content) + content


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choices: list[object], **more: object) -> bytes:
    shape = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return _frame(b"data: " + json.dumps({**shape, **more}, separators=(",", ":")).encode() + b"\n\n")


def _delta(delta: dict[str, str], finish: str | None) -> bytes:
    return _event([{"index": 0, "delta": delta, "finish_reason": finish}])


COMPLETION = _reply(
    {
        "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello world " * 20},
                "finish_reason": "stop",
            }
        ],
        "usage": _USAGE,
    }
)  # fmt: skip
MODELS = _reply(
    {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x", "max_model_len": 8192}],
    }
)
NOTHING = _reply({})
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
TOKEN = _delta({"content": " token"}, None)
STREAM_TAIL = _delta({}, "stop") + _event([], usage=_USAGE) + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, chunks: int, gap_s: float) -> None:
        self._chunks = chunks
        self._gap_s = gap_s
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._body: list[bytes] = []
        self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # Parser.
    def on_message_begin(self) -> None:
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._url.startswith(b"/v1/models"):
            self.transport.write(MODELS)
        elif not self._body:
            self.transport.write(NOTHING)
        elif json.loads(b"".join(self._body)).get("stream"):
            self.transport.write(STREAM_HEAD)
            self._loop.call_later(self._gap_s, self._step, 0)
        else:
            self.transport.write(COMPLETION)

    def _step(self, index: int) -> None:
        if self.transport.is_closing():
            return
        if index < self._chunks:
            self.transport.write(TOKEN)
            self._loop.call_later(self._gap_s, self._step, index + 1)
        else:
            self.transport.write(STREAM_TAIL)


async def serve(port: int, chunks: int, gap_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(chunks, gap_s), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    port, *more = sys.argv[1:]
    uvloop.run(serve(int(port), int(more[0]) if more else 64, float(more[1]) if len(more) > 1 else 0.0))
