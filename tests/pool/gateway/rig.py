"""A gateway in this process with fake engines behind it, and a client that sees every byte."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httptools

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.routing_table import (
    KeyRoute,
    LaneRoute,
    ModelRoute,
    PlanRoute,
    ReleaseRoute,
    ReplicaRoute,
    RoutingTable,
    to_bytes,
)
from pool.domain.signing import derive_engine_key, digest_key
from pool.gateway.config import Config
from pool.gateway.process import Gateway
from pool.gateway.replicas import LiveReplica
from pool.gateway.routes import ONLY_LANE
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.switches import Switches

SECRET = "a-secret-of-the-installation"
KEY = "sk-sluice-standard"
PIN_KEY = "sk-sluice-pinner"
NARROW_KEY = "sk-sluice-narrow"
DEADLINE_S = 15.0
CHAT = "/v1/chat/completions"


def make_key(key: str, **changes: Any) -> KeyRoute:
    usual = KeyRoute(digest_key(SECRET, key), "a key", "standard", None, False, "web")
    return replace(usual, **changes)


KEYS = (
    make_key(KEY),
    make_key(PIN_KEY, may_pin=True, label="ops"),
    make_key(NARROW_KEY, models=("other",)),
)


def make_replica(name: str, address: str, **changes: Any) -> ReplicaRoute:
    return replace(ReplicaRoute(name, 1, "node-1", address, None, 8192, None), **changes)


def make_release(number: int, *replicas: ReplicaRoute) -> ReleaseRoute:
    return ReleaseRoute(number, "v1", "balanced", "vllm", replicas)


def make_table(  # noqa: PLR0913  a test names what it needs
    *releases: ReleaseRoute,
    weights: dict[int, int] | None = None,
    version: int = 1,
    epoch: int = 1,
    installation: str = "test",
    starting: int = 0,
    lanes: tuple[LaneRoute, ...] = (),
    keys: tuple[KeyRoute, ...] = KEYS,
    lane_weights: dict[str, dict[int, int]] | None = None,
    lane: dict[str, Any] | None = None,
    settings: ModelSettings | None = None,
    **plan: Any,
) -> RoutingTable:
    """`lane`: settings of the only lane, where `lanes` names none."""
    if weights is None:
        weights = {releases[0].number: 100} if releases else {}
    usual = PlanRoute(1, weights, lane_weights or {}, {}, None)
    if not lanes:
        lanes = (LaneRoute(ONLY_LANE, None, LaneSettings(**(lane or {}))),)
    model = ModelRoute("m", lanes, replace(usual, **plan), releases, starting, settings or ModelSettings())
    return RoutingTable(installation, epoch, version, (model,), keys)


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    buffer: bytearray = field(default_factory=bytearray)
    complete: bool = False
    """The body ended as HTTP wants it."""

    @property
    def body(self) -> bytes:
        return bytes(self.buffer)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error

    @property
    def events(self) -> list[str]:
        lines = self.body.decode().split("\n\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def text(self) -> str:
        deltas = [json.loads(event) for event in self.events if '"delta"' in event]
        return "".join(event["choices"][0]["delta"].get("content", "") for event in deltas)


class Connection:
    """One client connection. Reads what comes; parses responses one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.raw = bytearray()
        self._done: list[Response] = []
        self._current = Response()
        self._parser = httptools.HttpResponseParser(self)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read_response(self) -> Response:
        """The next one, whole or cut."""
        async with asyncio.timeout(DEADLINE_S):
            while not self._done:
                if not await self._read_some():
                    return self._current
            return self._done.pop(0)

    async def read_until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            data = b"-"
            while data and mark not in self.raw[-len(data) - len(mark) :]:
                data = await self._read_some()
        return bytes(self.raw)

    async def read_to_end(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            while await self._read_some():
                pass
        return bytes(self.raw)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def _read_some(self) -> bytes:
        try:
            data = await self.reader.read(65_536)
        except ConnectionError:
            return b""
        self.raw += data
        # What is no HTTP is for the test to look at, in `raw`.
        with contextlib.suppress(httptools.HttpParserError):
            self._parser.feed_data(data)
        return data

    # Parser.
    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._current.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._current.buffer += body

    def on_message_complete(self) -> None:
        self._current.complete = True
        if self._current.status != 100:
            self._done.append(self._current)
        self._current = Response()


class Rig:
    """`start_engine` first, then `serve` with a table, then `ask`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: dict[str, FakeEngine] = {}
        self.gateways: list[Gateway] = []
        self.connections: list[Connection] = []
        self.port = 0
        """Of a gateway in another process; 0 = of this rig's own."""
        self.config = Config(
            secret=SECRET, data_dir=folder, port=0, installation="test", sweep_s=0.01, drain_s=5.0
        )

    @property
    def gateway(self) -> Gateway:
        return self.gateways[-1]

    async def start_engine(self, name: str = "r1", *, tcp: bool = False, **switches: Any) -> ReplicaRoute:
        """A replica whose engine demands the key that its id and generation give."""
        key = derive_engine_key(SECRET, replica_id=name, generation=1)
        engine = FakeEngine(Switches(instance_id=name, **switches), key=key)
        address = await engine.start(uds="" if tcp else str(self.folder / f"{name}.sock"))
        self.engines[name] = engine
        return make_replica(name, address)

    async def serve(self, table: RoutingTable | None, **changes: Any) -> Gateway:
        self.config = replace(self.config, **changes)
        gateway = Gateway(self.config)
        await gateway.start()
        self.gateways.append(gateway)
        if table is not None:
            self.apply(table)
        return gateway

    def apply(self, table: RoutingTable) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self.gateway.plane.routes.offer(to_bytes(table, SECRET), now_s=now_s)

    def replica(self, name: str = "r1") -> LiveReplica:
        return next(one for one in self.gateway.plane.routes.replicas if one.id == name)

    async def connect(self) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port or self.gateway.port)
        connection = Connection(reader, writer)
        self.connections.append(connection)
        return connection

    async def ask(self, body: dict[str, Any] | bytes | None = None, **more: Any) -> Response:
        connection = await self.connect()
        connection.send(chat_request(body, **more))
        return await connection.read_response()

    async def get(self, path: str, **headers: str) -> Response:
        connection = await self.connect()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        connection.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
        return await connection.read_response()

    async def until(self, holds: Callable[[], object], *, within_s: float = DEADLINE_S) -> None:
        """Waits for what must come true by itself; raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not holds():  # noqa: ASYNC110  what is waited for has no event
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        for connection in self.connections:
            connection.close()
        for gateway in self.gateways:
            await gateway.stop()
        for engine in self.engines.values():
            await engine.stop()
        await asyncio.sleep(0.01)


def chat_body(prompt: str = "What is the capital of France?", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **more}


def chat_request(
    body: dict[str, Any] | bytes | None = None,
    *,
    path: str = CHAT,
    key: str = KEY,
    headers: dict[str, str] | None = None,
    chunked: bool = False,
    **fields: Any,
) -> bytes:
    """`fields` go into the body."""
    content = body if isinstance(body, bytes) else json.dumps(body or chat_body(**fields)).encode()
    lines = {"host": "gateway", "authorization": f"Bearer {key}", **(headers or {})}
    if chunked:
        lines["transfer-encoding"] = "chunked"
        content = b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n"
    else:
        lines.setdefault("content-length", str(len(content)))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content
