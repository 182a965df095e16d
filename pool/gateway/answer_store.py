"""The second layer of kept answers: Redis, asked for a moment only, and left alone while it is away."""

import asyncio
import hmac
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from hashlib import blake2b

import orjson
import redis.asyncio
from redis.exceptions import RedisError

# An engine's answer takes longer than this by far; a hit in Redis takes a hundredth of it.
_WAIT_S = 0.05
_PAUSE_S = 1.0
_MOST_TASKS = 64
_MAC_BYTES = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """Of status 200, whole."""

    release: int
    content_type: bytes
    body: bytes


class AnswerStore:
    """`drops` counts answers that were not written, `failures` those times that Redis did not do its part."""

    def __init__(self, *, secret: bytes) -> None:
        self._secret = secret
        self._client: redis.asyncio.Redis | None = None
        self._prefix = ""
        self._paused_until_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.drops = 0
        self.failures = 0

    def attach(self, client: "redis.asyncio.Redis | None", *, prefix: str) -> None:
        """None = Redis is away."""
        self._client = client
        self._prefix = prefix
        self._paused_until_s = 0.0

    def is_open(self, now_s: float) -> bool:
        return self._client is not None and now_s >= self._paused_until_s and len(self._tasks) < _MOST_TASKS

    def look(self, key: bytes, on_done: Callable[[tuple[Answer, float] | None], None]) -> None:
        """Tells later, once: the answer and its age in seconds, or None. Only while it is open."""
        self._start(self._look(key, on_done))

    def keep(self, key: bytes, answer: Answer, *, cache_s: float, now_s: float) -> None:
        if self._client is None:
            return
        if not self.is_open(now_s):
            self.drops += 1
            return
        self._start(self._keep(key, answer, cache_s))

    async def _look(self, key: bytes, on_done: Callable[[tuple[Answer, float] | None], None]) -> None:
        found = None
        client = self._client
        if client is not None:
            try:
                async with asyncio.timeout(_WAIT_S):
                    sealed = await client.get(self._name(key))
                found = self._open(key, sealed) if isinstance(sealed, bytes) else None
            except (RedisError, OSError, TimeoutError):
                self._pause()
        on_done(found)

    async def _keep(self, key: bytes, answer: Answer, cache_s: float) -> None:
        client = self._client
        assert client is not None
        try:
            async with asyncio.timeout(_WAIT_S):
                await client.set(self._name(key), self._seal(key, answer), px=max(1, int(cache_s * 1000)))
        except (RedisError, OSError, TimeoutError):
            self.drops += 1
            self._pause()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _pause(self) -> None:
        """Without it each request would wait for a Redis that does not answer."""
        self.failures += 1
        self._paused_until_s = time.monotonic() + _PAUSE_S

    def _name(self, key: bytes) -> str:
        return f"{self._prefix}:answer:{key.hex()}"

    def _seal(self, key: bytes, answer: Answer) -> bytes:
        head = orjson.dumps([answer.release, answer.content_type.decode("latin-1"), time.time()])
        content = head + b"\n" + answer.body
        return self._mac(key, content) + content

    def _open(self, key: bytes, sealed: bytes) -> tuple[Answer, float] | None:
        """None for what somebody else wrote there."""
        mac, content = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(key, content)):
            return None
        head, _, body = content.partition(b"\n")
        release, content_type, stored_at = orjson.loads(head)
        return Answer(release, content_type.encode("latin-1"), body), max(0.0, time.time() - stored_at)

    def _mac(self, key: bytes, content: bytes) -> bytes:
        return blake2b(key + content, key=self._secret, digest_size=_MAC_BYTES).digest()
