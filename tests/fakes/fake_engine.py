"""An engine without a model that speaks vLLM's API and fails on demand (see `switches.py`).

    python -m tests.fakes.fake_engine --uds PATH | --port N [--key KEY] [--switch name=value …]

In a test: `engine = FakeEngine(Switches(close_at=5)); await engine.start(); …; await engine.stop()`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop

from tests.fakes import answers
from tests.fakes.switches import INFINITE, Switches


@dataclass
class Call:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    aborted: bool = False
    response: bytearray = field(default_factory=bytearray)
    """The body as it left, without framing."""


class FakeEngine:
    def __init__(self, switches: Switches | None = None, *, key: str = "") -> None:
        self.switches = switches or Switches()
        self.key = key
        self.calls: list[Call] = []
        self.connections: set[_Connection] = set()
        self.connections_made = 0
        self.address = ""
        self.running = self.waiting = self.finished = self.tokens = 0
        self.draining = False
        self.exit: Callable[[int], None] = self._vanish
        self._begun = 0
        self._prefixes = answers.PrefixMemory()
        self._moves = asyncio.Event()
        self._moves.set()
        self._loaded_at = INFINITE
        self._server: asyncio.Server | None = None

    @property
    def completions(self) -> list[Call]:
        return [call for call in self.calls if call.method == "POST"]

    async def start(self, *, uds: str = "", port: int | None = None, host: str = "127.0.0.1") -> str:
        """Listens and returns the address in a routing table's form; without arguments on a free port."""
        loop = asyncio.get_running_loop()
        self._loaded_at = loop.time() + self.switches.load_s
        self._slots = asyncio.Semaphore(self.switches.slots)
        self._prefill = asyncio.Lock()
        if self.switches.health_from != "bind":
            await asyncio.sleep(self.switches.load_s)
        if uds:
            self._server = await loop.create_unix_server(lambda: _Connection(self), uds, backlog=2048)
            self.address = f"unix:{uds}"
        else:
            self._server = await loop.create_server(lambda: _Connection(self), host, port or 0)
            self.address = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    async def stop(self) -> None:
        self._vanish(0)
        if self._server is not None:
            await self._server.wait_closed()

    def freeze(self) -> None:
        """Its core stands still while the API goes on, until `thaw`: what SIGSTOP does to a real core."""
        self._moves.clear()

    def thaw(self) -> None:
        self._moves.set()

    async def idle(self) -> None:
        """Returns when no completion runs."""
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _vanish(self, _code: int) -> None:
        """The in-process stand-in for os._exit: nothing listens, every connection is reset."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()

    async def answer(self, connection: "_Connection", call: Call) -> None:
        path = call.path.partition("?")[0]
        pages: dict[str, Callable[[], tuple[int, bytes]]] = {
            "/health": self._health,
            "/v1/models": lambda: (200, answers.models_page(self.switches)),
            "/version": lambda: (200, b'{"version":"0.32.0"}'),
            "/load": lambda: (200, b'{"server_load":%d}' % self.running),
        }
        page = pages.get(path)
        if self.key and call.headers.get("authorization") != f"Bearer {self.key}":
            connection.respond(401, b'{"error":"Unauthorized"}')
        elif page is not None and call.method == "GET":
            connection.respond(*page())
        elif path == "/metrics":
            await self._metrics(connection)
        elif call.method == "POST" and path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            await self._complete(connection, call, chat=path == "/v1/chat/completions")
        elif call.method == "POST" and path in ("/tokenize", "/v1/embeddings"):
            connection.respond(200, self._tokenize(call))
        else:
            connection.respond(404, b'{"detail":"Not Found"}')

    def _health(self) -> tuple[int, bytes]:
        warm = self.switches.health_from != "warm" or self.finished > 0
        return (200, b"") if warm and not self.switches.dead_core else (503, b"")

    def _tokenize(self, call: Call) -> bytes:
        body = json.loads(call.body)
        count = answers.count_tokens(answers.prompt_of(body))
        if call.path == "/tokenize":
            page = {"count": count, "max_model_len": self.switches.max_ctx, "tokens": list(range(count))}
        else:
            vector = {"object": "embedding", "index": 0, "embedding": [0.0, 1.0]}
            usage = {"prompt_tokens": count, "total_tokens": count}
            page = {"object": "list", "data": [vector], "model": self.switches.model, "usage": usage}
        return json.dumps(page).encode()

    async def _metrics(self, connection: "_Connection") -> None:
        if self.switches.metrics == "500":
            connection.respond(500, b"boom", kind="text/plain")
            return
        if self.switches.metrics == "slow":
            await asyncio.sleep(30)
        counts = {"running": self.running, "waiting": self.waiting}
        page = answers.metrics_page(self.switches, finished=self.finished, tokens=self.tokens, **counts)
        connection.respond(200, page, kind="text/plain; version=0.0.4")

    async def _complete(self, connection: "_Connection", call: Call, *, chat: bool) -> None:
        self._begun += 1
        turn = self._begun
        try:
            body = json.loads(call.body)
        except ValueError:
            connection.respond(400, answers.error_body(400, "1 validation error: json_invalid"))
            return
        refusal = self._refusal(body)
        if refusal:
            await asyncio.sleep(self.switches.err_s)
            connection.respond(*refusal)
            return
        if self.switches.hang_after is not None and turn > self.switches.hang_after:
            await asyncio.sleep(86_400)
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            await self._prefill_prompt(body, first=turn == 1)
            request_id = call.headers.get("x-request-id", f"fake{turn}")
            answer = answers.Answer(
                self.switches, body, request_id=request_id, chat=chat, cached=self._find_cached(body)
            )
            await (self._stream if body.get("stream") else self._speak)(connection, answer)
            self.finished += 1
        finally:
            self.running -= 1
            self._slots.release()

    def _find_cached(self, body: dict[str, Any]) -> int | None:
        known = self._prefixes.note(answers.prompt_of(body))
        return {"known": known, "zero": 0}.get(self.switches.cached)

    def _refusal(self, body: dict[str, Any]) -> tuple[int, bytes] | None:
        prompt = answers.prompt_of(body)
        if self.switches.poison and self.switches.poison in prompt:
            self.exit(1)
        status = self.switches.err
        if self.switches.dead_core:
            return 500, answers.error_body(500, answers.DEAD_CORE, kind="InternalServerError")
        if "ERR:" in prompt:
            status = int(prompt.partition("ERR:")[2][:3])
        if status:
            return status, answers.error_body(status, f"the switch err={status}", kind="Error")
        length = answers.count_tokens(prompt)
        if length >= self.switches.max_ctx:
            message = f"This model's maximum context length is {self.switches.max_ctx} tokens."
            return 400, answers.error_body(400, message, param="input_tokens")
        return None

    async def _prefill_prompt(self, body: dict[str, Any], *, first: bool) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._loaded_at - loop.time()) + (self.switches.first_s if first else 0))
        cost_s = answers.count_tokens(answers.prompt_of(body)) / 1000 * self.switches.ms_per_ktok / 1000
        if not cost_s:
            return
        async with self._prefill if self.switches.serial_prefill else contextlib.nullcontext():
            await asyncio.sleep(cost_s)

    async def _speak(self, connection: "_Connection", answer: answers.Answer) -> None:
        for index in range(len(answer.words)):
            if await self._fails_at(connection, index):
                return
            if self.switches.gap_s:
                await asyncio.sleep(self.switches.gap_s)
        self.tokens += len(answer.words)
        connection.respond(200, answer.plain(), cut=self.switches.cut)

    async def _stream(self, connection: "_Connection", answer: answers.Answer) -> None:
        # A death at chunk 0 comes before any byte of the answer.
        if await self._fails_at(connection, 0):
            return
        connection.begin_stream(self.switches.cut)
        if answer.chat:
            await connection.send(answer.event(-1))
        for index in range(len(answer.words)):
            if index and await self._fails_at(connection, index):
                return
            if index == self.switches.error_at:
                await connection.end_stream(answer.dead_core())
                return
            if self.draining and self.switches.term_mode == "abort":
                await connection.end_stream(answer.ending("abort", spoken=index))
                return
            await connection.send(answer.event(index))
            self.tokens += 1
            # Yields even at 0, so that each chunk is a write of its own.
            await asyncio.sleep(self.switches.gap_s)
        await connection.end_stream(answer.ending(answer.reason, spoken=len(answer.words)))

    async def _fails_at(self, connection: "_Connection", index: int) -> bool:
        await self._moves.wait()
        if index == self.switches.stall_at:
            await asyncio.sleep(86_400)
        if index == self.switches.die_at:
            self.exit(self.switches.exit_code)
            return True
        if index == self.switches.close_at:
            connection.transport.close()
            return True
        return False


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._calls: list[Call] = []
        self.task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # Protocol.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport for Unix sockets is no asyncio.Transport by class, only by its methods.
        self.transport = cast(asyncio.Transport, transport)
        self._engine.connections.add(self)
        self._engine.connections_made += 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.connections.discard(self)
        self._writable.set()
        if self.task is not None and not self.task.done():
            self._calls[-1].aborted = True
            self.task.cancel()
            self._log_abort("closed" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Parser.
    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        call = Call(method, self._url.decode("latin-1"), self._headers, bytes(self._body))
        self._calls.append(call)
        self._engine.calls.append(call)
        self.task = asyncio.get_running_loop().create_task(self._engine.answer(self, call))

    # Answers.
    def respond(
        self, status: int, body: bytes, kind: str = "application/json", *, cut: tuple[int, ...] = ()
    ) -> None:
        self._calls[-1].status = status
        self._calls[-1].response += body
        head = self._head(status, kind) + f"content-length: {len(body)}\r\n\r\n".encode()
        if not cut:
            self.transport.write(head + body)
            return
        self.transport.write(head)
        for start, end in _cut_spans(0, len(body), cut):
            self.transport.write(body[start:end])

    def begin_stream(self, cut: tuple[int, ...] = ()) -> None:
        self._cut = cut
        self._sent_bytes = 0
        self._calls[-1].status = 200
        head = self._head(200, "text/event-stream; charset=utf-8")
        self.transport.write(head + b"transfer-encoding: chunked\r\n\r\n")

    async def send(self, event: bytes) -> None:
        self._calls[-1].response += event
        start = self._sent_bytes
        self._sent_bytes += len(event)
        for low, high in _cut_spans(start, self._sent_bytes, self._cut):
            piece = event[low - start : high - start]
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if high != self._sent_bytes:
                # Another round of the loop, so that the peer sees two reads.
                await asyncio.sleep(0.001)
        await self._writable.wait()

    async def end_stream(self, event: bytes) -> None:
        await self.send(event)
        self.transport.write(b"0\r\n\r\n")

    def _head(self, status: int, kind: str) -> bytes:
        switches = self._engine.switches
        return (
            f"HTTP/1.1 {status} X\r\ndate: Thu, 05 Nov 2026 09:00:00 GMT\r\nserver: uvicorn\r\n"
            f"x-fake-instance: {switches.instance_id}\r\nx-fake-model: {switches.model}\r\n"
            f"x-fake-variant: {switches.variant}\r\ncontent-type: {kind}\r\n"
        ).encode()

    def _log_abort(self, reason: str) -> None:
        if self._engine.switches.abort_log:
            request_id = self._calls[-1].headers.get("x-request-id", "-")
            with Path(self._engine.switches.abort_log).open("a", encoding="utf-8") as log:
                log.write(f"{request_id} {reason}\n")


def _cut_spans(start: int, end: int, cut: tuple[int, ...]) -> list[tuple[int, int]]:
    edges = [start, *sorted(offset for offset in set(cut) if start < offset < end), end]
    return list(zip(edges, edges[1:], strict=False))


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A fake engine with fault switches")
    parser.add_argument("--uds", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default=os.environ.get("SLUICE_ENGINE_KEY", ""))
    parser.add_argument("--switch", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


def _fail_start(switches: Switches) -> None:
    """Exits if this start shall fail."""
    starts = 1
    if switches.fail_starts:
        counter = Path(f"{switches.ledger}.starts")
        starts = (int(counter.read_text()) if counter.exists() else 0) + 1
        counter.write_text(str(starts))
    if switches.start_fail and (not switches.fail_starts or starts <= switches.fail_starts):
        time.sleep(switches.load_s)
        sys.stderr.write(answers.fatal_log(switches.start_fail, pid=os.getpid()))
        sys.exit(switches.exit_code)


_LEDGER_KEEPER = """
import json, os, sys, time
start = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
with open(sys.argv[1], "a") as ledger:
    entry = {"pid": os.getpid(), "start_time": int(start), "bytes": int(sys.argv[2])}
    ledger.write(json.dumps(entry) + "\\n")
time.sleep(86400)
"""


async def _serve(arguments: argparse.Namespace, switches: Switches) -> None:
    engine = FakeEngine(switches, key=arguments.key)
    engine.exit = os._exit
    stopped = asyncio.Event()

    def on_term() -> None:
        if not switches.ignore_term:
            engine.draining = True
            stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_term)
    address = await engine.start(uds=arguments.uds, port=arguments.port, host=arguments.host)
    sys.stderr.write(f"(APIServer pid={os.getpid()}) INFO: Application startup complete. {address}\n")
    sys.stderr.flush()
    await stopped.wait()
    grace_s = 86_400.0 if switches.term_mode == "drain" else 0.5
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(engine.idle(), grace_s)


def main() -> None:
    arguments = _read_arguments()
    switches = Switches()
    for pair in arguments.switch:
        name, _, value = pair.partition("=")
        switches.set(name, value)
    _fail_start(switches)
    if switches.fork_child:
        # Like a real core: same process group, and it outlives the death of its parent.
        subprocess.Popen([sys.executable, "-c", _LEDGER_KEEPER, switches.ledger, str(switches.ledger_bytes)])
    with contextlib.suppress(FileNotFoundError):
        if arguments.uds:
            _remove_stale_socket(arguments.uds)
    uvloop.run(_serve(arguments, switches))


def _remove_stale_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


if __name__ == "__main__":
    main()
