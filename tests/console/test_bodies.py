from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from console.bodies import take_bodies


class Exchange:
    """One request as the server would bring it, piece by piece."""

    def __init__(self, *pieces: bytes | None, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """None: the client goes away."""
        self.pieces = list(pieces)
        self.scope: dict[str, Any] = {"headers": list(headers)}
        self.sent: list[dict[str, Any]] = []
        self.body: bytes | None = None

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert message["more_body"] is False
        self.body = message["body"]

    async def receive(self) -> dict[str, Any]:
        if not self.pieces:
            await asyncio.Event().wait()
        piece = self.pieces.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def run(self, **options: float) -> None:
        await take_bodies(self.app, **options)(self.scope, self.receive, self.send)


async def test_pieces_become_one_body_with_its_length() -> None:
    exchange = Exchange(b"ab", b"c", b"", headers=((b"transfer-encoding", b"chunked"), (b"host", b"x")))

    await exchange.run()

    assert exchange.body == b"abc"
    assert exchange.scope["headers"] == [(b"host", b"x"), (b"content-length", b"3")]


async def test_a_request_without_a_body_gets_no_length() -> None:
    exchange = Exchange(b"", headers=((b"host", b"x"),))

    await exchange.run()

    assert exchange.scope["headers"] == [(b"host", b"x")]


@pytest.mark.parametrize(
    ("pieces", "status", "code"),
    [((b"a" * 1_048_577,), 413, "request_too_large"), ((b"half",), 408, "request_timeout")],
)
async def test_a_body_too_large_or_too_late_is_refused(
    pieces: tuple[bytes, ...], status: int, code: str
) -> None:
    exchange = Exchange(*pieces)

    await exchange.run(timeout_s=0.01)

    assert exchange.body is None
    assert exchange.sent[0]["status"] == status
    assert json.loads(exchange.sent[1]["body"])["error"]["code"] == code


async def test_a_sender_that_leaves_gets_no_answer() -> None:
    exchange = Exchange(b"half", None)

    await exchange.run()

    assert (exchange.body, exchange.sent) == (None, [])
