"""Takes a request's body in the event loop before a thread is asked: a slow sender must not hold one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.conf import settings

from console.errors import Failure, make_failure

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_TIMEOUT_S = 10.0


class BodyTooLarge(Exception):
    """More than the settings allow."""


class SenderGone(Exception):
    """The client closed before its body was complete."""


def take_bodies(app: App, *, timeout_s: float = BODY_TIMEOUT_S) -> App:
    """The app sees one whole body with its length, also where it came in chunks."""

    async def taking(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                body = await _read(receive, limit=settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0)
        except TimeoutError:
            await refuse(send, make_failure("request_timeout", "The body did not arrive in time."))
        except BodyTooLarge:
            await refuse(send, make_failure("request_too_large", "The body is larger than 1 MiB."))
        except SenderGone:
            return
        else:
            messages = [{"type": "http.request", "body": body, "more_body": False}]
            scope["headers"] = _with_length(scope["headers"], len(body))
            await app(scope, lambda: _next(messages, receive), send)

    return taking


async def _read(receive: Receive, *, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise SenderGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return bytes(body)


async def _next(messages: list[dict[str, Any]], receive: Receive) -> Any:
    return messages.pop() if messages else await receive()


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in headers if name not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode())] if len(kept) < len(headers) else kept


async def refuse(send: Send, failure: Failure) -> None:
    """And closes: the rest of the body is not wanted."""
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": failure.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(failure.body()).encode()})
