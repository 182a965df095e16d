"""`python -m workers.engines.sim_server`: an engine without a model that speaks vLLM's API, for tests and rehearsals.

Every answer says so: header `x-sluice-simulated`, fingerprint `sim`, owner `sluice-sim`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from workers.engines import sim_answers as answers
from workers.engines.sim_answers import BadRequest, Job
from workers.engines.sim_model import SimModel, SimSettings, Step
from workers.engines.sim_ring import SimRing
from workers.plugin.sluice_engine.ring import RING_VARIABLE

KEY_VARIABLE = "SLUICE_ENGINE_KEY"
MARK = b"x-sluice-simulated: true\r\n"
REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    500: b"Internal Server Error",
}
MAX_BODY_BYTES = 64 << 20


@dataclass(slots=True)
class Counters:
    prompt_tokens: float = 0
    generation_tokens: float = 0
    finished: float = 0
    ttft_s: float = 0
    first_tokens: float = 0
    asked: float = 0
    """Completions, the failing ones included."""

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Engine:
    """The batching loop: one step of the model after the other, tokens delivered at each step's end."""

    served: str
    settings: SimSettings
    model: SimModel
    ring: SimRing
    counters: Counters = field(default_factory=Counters)
    listeners: dict[int, Callable[[], None]] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, job: Job, on_token: Callable[[], None], request_id: str = "") -> None:
        self.listeners[id(job.request)] = on_token
        self.ring.note_arrival(job.request, request_id)
        self.model.add(job.request)
        self.wake.set()

    def fail_some(self) -> None:
        """Raises BadRequest for the share of completions that a rehearsal wants to fail."""
        self.counters.asked += 1
        late = self.counters.asked - self.settings.sound_requests
        ratio = self.settings.error_ratio
        if late > 0 and int(late * ratio) > int((late - 1) * ratio):
            raise BadRequest("This engine rehearses failures.", status=500, kind="InternalServerError")

    def drop(self, job: Job) -> None:
        if self.listeners.pop(id(job.request), None) is not None:
            self.model.remove(job.request)
            self.ring.note_gone(job.request)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.ring.note_begin()
            step = self.model.step()
            if step is None:
                self.wake.clear()
                await self.wake.wait()
                due = loop.time()
                continue
            due = max(due, loop.time() - step.duration_s) + step.duration_s
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._deliver(step)

    def _deliver(self, step: Step) -> None:
        self.counters.generation_tokens += len(step.produced)
        self.ring.note_end(step)
        for request in step.produced:
            on_token = self.listeners.get(id(request))
            if on_token is None:
                continue
            if request.generated == 1:
                self.counters.prompt_tokens += request.prompt_tokens
            if request.finished:
                self.counters.finished += 1
                del self.listeners[id(request)]
            on_token()


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests one after the other."""

    def __init__(self, engine: Engine, key: str) -> None:
        self._engine = engine
        self._expected = f"Bearer {key}".encode() if key else b""
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._url = b""
        self._allowed = not key
        self._request_id = ""
        self._job: Job | None = None
        self._started = 0.0
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._job is not None:
            self._engine.drop(self._job)

    def on_message_begin(self) -> None:
        self._body.clear()
        self._url = b""
        self._request_id = ""
        self._allowed = not self._expected

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._expected and name.lower() == b"authorization":
            self._allowed = hmac.compare_digest(value, self._expected)
        elif name.lower() == b"x-request-id":
            self._request_id = value.decode(errors="replace")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_BODY_BYTES:
            self._close()

    def on_message_complete(self) -> None:
        path = self._url.split(b"?", 1)[0].decode(errors="replace")
        method = self._parser.get_method().decode()
        if not self._allowed:
            self._refuse(BadRequest("Engine key required.", status=401, kind="AuthenticationError"))
            return
        try:
            self._route(method, path)
        except BadRequest as exc:
            self._refuse(exc)
        except RecursionError:
            self._refuse(BadRequest("The body nests too deeply.", kind="Bad Request"))

    def abort(self) -> None:
        """As vLLM ends its streams at SIGTERM."""
        if self._job is not None and self._job.stream and self._transport is not None:
            self._chunk(answers.abort_event(self._job) + answers.last_events(self._job))
            self._chunk(b"")
        self._close()

    def _route(self, method: str, path: str) -> None:
        """/ping answers both methods, as vLLM's does."""
        if path == "/health" or path == "/ping":
            self._answer(b"")
        elif (method, path) == ("POST", "/v1/chat/completions"):
            self._complete(chat=True)
        elif (method, path) == ("POST", "/v1/completions"):
            self._complete(chat=False)
        elif (method, path) == ("GET", "/metrics"):
            engine = self._engine
            text = answers.metrics_answer(engine.model, engine.served, engine.counters.as_dict())
            self._answer(text, kind=b"text/plain; version=0.0.4")
        else:
            content = self._read_plain(method, path)
            self._answer(content or b'{"detail":"Not Found"}', status=200 if content else 404)

    def _read_plain(self, method: str, path: str) -> bytes | None:
        engine = self._engine
        match (method, path):
            case ("GET", "/version"):
                return b'{"version":"sim-1"}'
            case ("GET", "/v1/models"):
                return answers.models_answer(engine.served, engine.settings)
            case ("POST", "/tokenize"):
                return answers.tokenize_answer(bytes(self._body), engine.settings)
            case ("POST", "/v1/embeddings"):
                return answers.embeddings_answer(bytes(self._body), engine.served)
            case _:
                return None

    def _complete(self, *, chat: bool) -> None:
        engine = self._engine
        body = bytes(self._body)
        engine.fail_some()
        job = answers.read_job(body, chat=chat, served=engine.served, settings=engine.settings)
        self._job = job
        self._started = time.monotonic()
        self._sent = 0
        if engine.settings.delay_s:
            loop = asyncio.get_running_loop()
            loop.call_later(engine.settings.delay_s, self._submit, job, self._request_id)
        else:
            self._submit(job, self._request_id)

    def _submit(self, job: Job, request_id: str) -> None:
        """Nothing for a client that went while its request was held back."""
        if self._job is job and self._transport is not None:
            self._engine.submit(job, self._on_token, request_id or job.id)

    def _on_token(self) -> None:
        job = self._job
        if job is None or self._transport is None:
            return
        if job.request.generated == 1:
            self._engine.counters.first_tokens += 1
            self._engine.counters.ttft_s += time.monotonic() - self._started
        if job.stream:
            self._stream_token(job)
        elif job.request.finished:
            self._job = None
            self._answer(answers.whole_answer(job))

    def _stream_token(self, job: Job) -> None:
        if self._sent == 0:
            self._head(200, b"text/event-stream; charset=utf-8", length=None)
            if first := answers.first_event(job):
                self._chunk(first)
        finish = "length" if job.request.finished else None
        self._chunk(answers.token_event(job, self._sent, finish=finish))
        self._sent += 1
        if job.request.finished:
            self._chunk(answers.last_events(job))
            self._chunk(b"")
            self._job = None

    def _refuse(self, error: BadRequest) -> None:
        self._answer(answers.error_answer(error), status=error.status)

    def _answer(self, body: bytes, *, status: int = 200, kind: bytes = b"application/json") -> None:
        self._head(status, kind, length=len(body))
        if self._transport is not None:
            self._transport.write(body)

    def _head(self, status: int, kind: bytes, *, length: int | None) -> None:
        framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        head = b"HTTP/1.1 %d %s\r\n" % (status, REASONS.get(status, b"Error"))
        if self._transport is not None:
            self._transport.write(head + MARK + b"content-type: " + kind + b"\r\n" + framing + b"\r\n\r\n")

    def _chunk(self, content: bytes) -> None:
        if self._transport is not None:
            self._transport.write(b"%x\r\n%s\r\n" % (len(content), content))

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def main() -> int:
    options = _parse_options()
    settings = SimSettings.read(json.loads(options.settings))
    key = os.environ.pop(KEY_VARIABLE, "") if options.uds is None else ""
    if options.uds is None and not key:
        _say(f"RuntimeError: {KEY_VARIABLE} is not set: an engine on a network address needs its key.")
        return 1
    if settings.kv_tokens < settings.max_model_len:
        _say(
            f"ValueError: To serve at least one request with the model's max seq len ({settings.max_model_len}), "
            f"(0.0 GiB KV cache is needed, which is larger than the available KV cache memory (0.0 GiB). Based "
            f"on the available memory, the estimated maximum model length is {settings.kv_tokens}."
        )
        return 1
    time.sleep(settings.load_s)
    concurrency = settings.kv_tokens / settings.max_model_len
    _say(f"INFO Using max model len {settings.max_model_len}")
    _say(
        f"INFO KV cache size: {settings.kv_tokens:,} tokens, Maximum concurrency for "
        f"{settings.max_model_len:,} tokens per request: {concurrency:.2f}x"
    )
    asyncio.run(_serve(options, settings, key))
    return 0


async def _serve(options: argparse.Namespace, settings: SimSettings, key: str) -> None:
    model = SimModel(settings)
    engine = Engine(
        options.served_model_name, settings, model, SimRing.open(os.environ.get(RING_VARIABLE, ""), model)
    )
    connections: set[Connection] = set()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def connect() -> Connection:
        connection = Connection(engine, key)
        connections.add(connection)
        return connection

    server = await loop.create_server(connect, sock=_bind(options), backlog=1024)
    task = asyncio.create_task(engine.run())
    _say("INFO Application startup complete.")
    await stop.wait()
    server.close()
    for connection in connections:
        connection.abort()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)


def _bind(options: argparse.Namespace) -> socket.socket:
    if options.uds is not None:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(options.uds)
        return bound
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((options.host, options.port))
    return bound


def _say(text: str) -> None:
    sys.stdout.write(f"(SimEngine pid={os.getpid()}) {text}\n")
    sys.stdout.flush()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--uds")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--settings", default="{}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
