"""ASGI middleware that demands the engine key on every path and method.

vLLM's own --api-key leaves /invocations, /metrics and /tokenize open (0.32, measured).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sluice_engine.secret import KEY_VARIABLE, take_key

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

REFUSAL = b'{"error":{"message":"Engine key required.","type":"AuthenticationError","code":401}}'


class KeyGate:
    """Refuses everything without the key; without a key in its environment the engine does not start."""

    def __init__(self, app: App) -> None:
        key = take_key()
        if not key:
            raise RuntimeError(f"{KEY_VARIABLE} is not set: an engine on a network address needs its key.")
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4401})
        else:
            await _refuse(send)

    def _has_key(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        return len(sent) == 1 and hmac.compare_digest(sent[0], self._expected)


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSAL)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL})
