"""A closed-loop or fixed-rate HTTP client in its own process, cheap enough to measure gateways with.

    python -m bench._client '{"port": …, "key": …, "stream": …, "connections": …, "seconds": …, "rate": …}'

Prints one JSON object: requests, errors, and latencies in seconds, to the end of the answer (at a fixed rate only).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import uvloop

# Sentences of different lengths, so that neither side sees one request only.
_SENTENCE = "tell me about the weather today in Paris "
_VARIANTS = 16


@dataclass(frozen=True)
class Load:
    """`rate`: requests a second, sent on time whatever happens; None = each connection asks when it is answered."""

    port: int
    key: str = ""
    stream: bool = False
    connections: int = 32
    seconds: float = 5.0
    rate: float | None = None


@dataclass
class Result:
    requests: int = 0
    errors: int = 0
    latencies_s: list[float] = field(default_factory=list)

    def quantile_s(self, share: float) -> float:
        ranked = sorted(self.latencies_s)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else float("nan")


def run_load(load: Load) -> Result:
    """In a process of its own, so that its time is not the caller's."""
    command = [sys.executable, "-m", "bench._client", json.dumps(asdict(load))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=load.seconds + 60)
    return Result(**json.loads(done.stdout))


def make_request(load: Load, variant: int) -> bytes:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": f"{variant}: {_SENTENCE * (8 + variant % 5)}"},
    ]
    body: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": 64}
    if load.stream:
        body["stream"] = True
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
        f"Authorization: Bearer {load.key}\r\nContent-Type: application/json\r\nAccept: */*\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Caller(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sent_at_s = 0.0
        self._head = b""
        self._left = -1
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, due_s: float) -> None:
        self._sent_at_s = due_s
        self._head = b""
        self._left = -1
        self._tail = b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            data = self._read_head(data)
            if self._left < 0:
                return
        if self._left:
            self._left -= len(data)
            over = self._left <= 0
        else:
            self._tail = (self._tail + data)[-5:]
            over = self._tail == b"0\r\n\r\n"
        if over:
            self._driver.note(self, time.perf_counter() - self._sent_at_s, ok=b" 200 " in self._head[:16])

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.lose(self)

    def _read_head(self, data: bytes) -> bytes:
        """What follows the head. `_left`: bytes of the body that are to come, 0 = chunked."""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return b""
        head, rest = self._head[:end].lower(), self._head[end + 4 :]
        at = head.find(b"content-length: ")
        self._left = int(head[at + 16 :].split(b"\r\n")[0]) if at >= 0 else 0
        return rest


class Driver:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._requests = [make_request(load, variant) for variant in range(_VARIANTS)]
        self._next = 0
        self._idle: list[Caller] = []
        self._late: list[float] = []
        self._over = False
        self.result = Result()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        callers = []
        for _ in range(self._load.connections):
            _, caller = await loop.create_connection(lambda: Caller(self), "127.0.0.1", self._load.port)
            callers.append(caller)
        if self._load.rate is None:
            for caller in callers:
                self._send(caller, time.perf_counter())
            await asyncio.sleep(self._load.seconds)
        else:
            self._idle = callers
            await self._send_on_time(self._load.rate)
        self._over = True

    def note(self, caller: Caller, latency_s: float, *, ok: bool) -> None:
        if self._over:
            return
        self.result.requests += 1
        self.result.errors += not ok
        if self._load.rate is not None:
            # In a closed loop the callers set the pace themselves, so that their delays say nothing.
            self.result.latencies_s.append(round(latency_s, 7))
        if self._load.rate is None:
            self._send(caller, time.perf_counter())
        elif self._late:
            self._send(caller, self._late.pop(0))
        else:
            self._idle.append(caller)

    def lose(self, caller: Caller) -> None:
        if not self._over:
            self.result.errors += 1
            if caller in self._idle:
                self._idle.remove(caller)

    async def _send_on_time(self, rate: float) -> None:
        started_s = time.perf_counter()
        for number in range(int(rate * self._load.seconds)):
            due_s = started_s + number / rate
            await asyncio.sleep(due_s - time.perf_counter())
            if self._idle:
                self._send(self._idle.pop(), due_s)
            else:
                self._late.append(due_s)
        await asyncio.sleep(0.2)

    def _send(self, caller: Caller, due_s: float) -> None:
        self._next += 1
        caller.ask(self._requests[self._next % _VARIANTS], due_s)


async def main(load: Load) -> Result:
    driver = Driver(load)
    await driver.run()
    return driver.result


if __name__ == "__main__":
    result = uvloop.run(main(Load(**json.loads(sys.argv[1]))))
    sys.stdout.write(json.dumps(asdict(result)))
