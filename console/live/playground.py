"""The playground's socket: a chat goes to the gateway with web's own key and streams back as it arrives.

Closing the socket or sending `stop` closes the call at once. Prompts and answers are kept and logged nowhere.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError

from console.access import Right, socket_may
from console.live.chat_request import ChatRequest, parse_chat
from console.live.consumers import NO_LAYER, RECHECK_S, SIGNED_OUT, encode
from console.live.database import run_in_thread
from console.live.upstream import Call, open_call, read_events
from pool.domain.errors import PoolError
from pool.domain.signing import derive_playground_key
from pool.queries.models import find_release
from pool.queries.nodes import list_runtimes

LONGEST_MESSAGE = 65_536
PATH = "/v1/chat/completions"
FORBIDDEN = 4403


class PlaygroundConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """In: `{"type": "start", "model", "messages", "release"?, …}`, `{"type": "stop"}`. One answer at a time."""

    channel_layer_alias = NO_LAYER
    _answer: asyncio.Task[None] | None = None
    _watch: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self.accept()
        if not await self._may():
            await self.close(code=FORBIDDEN if self.scope["user"].is_authenticated else SIGNED_OUT)
            return
        self._watch = asyncio.create_task(self._watch_right())

    async def disconnect(self, code: int) -> None:
        for task in (self._answer, self._watch):
            if task is not None and task is not asyncio.current_task():
                await _cancel(task)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        message = _read_message(text_data)
        if message is None or self._watch is None:
            return
        if self._answer is not None:
            await _cancel(self._answer)
            self._answer = None
        if message.get("type") == "start":
            self._answer = asyncio.create_task(self._start(message))

    async def _start(self, message: Mapping[str, Any]) -> None:
        try:
            if not await self._may():
                await self.close(code=SIGNED_OUT)
                return
            await self._relay(parse_chat(message))
        except PoolError as error:
            await self._tell(type="failed", status=0, code=error.code, message=error.message)

    async def _relay(self, chat: ChatRequest) -> None:
        key = derive_playground_key(settings.SECRET_KEY)
        headers = {} if chat.release is None else {"x-sluice-release": str(chat.release)}
        began = time.monotonic()
        async with open_call(settings.GATEWAY_URL, PATH, key=key, body=chat.body(), headers=headers) as call:
            await self._tell_route(chat, call)
            if call.status != 200:
                await self._tell(type="failed", status=call.status, **read_error(await call.read_body()))
                return
            await self._stream(read_events(call.pieces()), began)

    async def _tell_route(self, chat: ChatRequest, call: Call) -> None:
        release = call.headers.get("x-sluice-release", "")
        await self._tell(
            type="route",
            status=call.status,
            request_id=call.headers.get("x-request-id", ""),
            release=release,
            replica=call.headers.get("x-sluice-replica", ""),
            lane=call.headers.get("x-sluice-lane", ""),
            simulated=await run_in_thread(lambda: is_simulated(chat.model, release)),
        )

    async def _stream(self, events: AsyncIterator[dict[str, Any]], began: float) -> None:
        first: float | None = None
        newest, tokens, reason = began, None, ""
        async for event in events:
            if "error" in event:
                await self._tell(type="failed", status=200, **read_error(json.dumps(event).encode()))
                return
            tokens = _part(event.get("usage")).get("completion_tokens", tokens)
            text, reason_now = read_delta(event)
            reason = reason_now or reason
            if text:
                newest = time.monotonic()
                first = first or newest
                await self._tell(type="text", text=text)
        await self._tell(
            type="done",
            ttft_ms=None if first is None else (first - began) * 1000,
            total_ms=(time.monotonic() - began) * 1000,
            tokens=tokens,
            tokens_per_s=rate_of(tokens, first, newest),
            finish_reason=reason,
        )

    async def _watch_right(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            if not await self._may():
                if self._answer is not None:
                    await _cancel(self._answer)
                await self.close(code=SIGNED_OUT)
                return

    async def _may(self) -> bool:
        scope: dict[str, Any] = self.scope
        try:
            return await run_in_thread(lambda: socket_may(scope, Right.OPERATE))
        except DatabaseError:
            return self._watch is not None

    async def _tell(self, **frame: object) -> None:
        await self.send(text_data=encode(frame))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, OSError):
        await task


def _read_message(text: str | None) -> dict[str, Any] | None:
    if text is None or len(text) > LONGEST_MESSAGE:
        return None
    with suppress(ValueError, RecursionError):
        message = json.loads(text)
        if isinstance(message, dict):
            return message
    return None


def is_simulated(model: str, release: str) -> bool:
    found = find_release(model, int(release)) if release.isdecimal() else None
    kinds = {row.name: row.kind for row in list_runtimes()}
    return found is not None and kinds.get(found.runtime) == "sim"


def read_delta(event: Mapping[str, Any]) -> tuple[str, str]:
    """Text and finish reason of a chunk; reasoning counts as text."""
    choices = event.get("choices")
    choice = _part(choices[0] if isinstance(choices, list) and choices else None)
    delta = _part(choice.get("delta"))
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
    return str(text), str(choice.get("finish_reason") or "")


def _part(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def read_error(body: bytes) -> dict[str, str]:
    """OpenAI's error shape; anything else is shown as far as it is text."""
    with suppress(ValueError, RecursionError):
        error = _part(_part(json.loads(body)).get("error"))
        if error:
            return {
                "code": str(error.get("code") or "error"),
                "message": str(error.get("message") or "")[:2000],
            }
    return {"code": "upstream_failed", "message": body[:300].decode("utf-8", "replace")}


def rate_of(tokens: int | None, first: float | None, newest: float) -> float | None:
    """Tokens per second after the first one; None with fewer than two."""
    if tokens is None or tokens < 2 or first is None or newest <= first:
        return None
    return (tokens - 1) / (newest - first)
