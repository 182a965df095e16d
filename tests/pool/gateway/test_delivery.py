"""Tables in, beats and facts out: by Redis, and by web when Redis is silent."""

import asyncio
import base64
import json
import shutil
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from launcher.servers import RunningServer, start_valkey
from pool.domain.gateway_settings import ModelSettings
from pool.domain.routing_table import RoutingTable, to_bytes
from pool.domain.signing import derive_internal_token
from pool.gateway.delivery import Delivery
from pool.gateway.fetch import FetchFailed, fetch
from pool.gateway.limits import Limits
from pool.gateway.shared_view import SharedView
from pool.gateway.sharing import Sharing
from tests.pool.gateway.rig import SECRET, Response, Rig, chat_request, make_release, make_table

PREFIX = "sluice:test"


@pytest.fixture
def valkey() -> Iterator[RunningServer]:
    folder = Path(tempfile.mkdtemp(prefix="sluice-gw-", dir="/tmp"))
    server = start_valkey(folder / "valkey", folder / "run", durable=False)
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def client(valkey: RunningServer) -> AsyncIterator["redis.asyncio.Redis"]:
    client = redis.asyncio.Redis.from_url(valkey.url)
    yield client
    await client.aclose()


async def store(client: "redis.asyncio.Redis", table: RoutingTable) -> None:
    key = f"{PREFIX}:table"
    for name, value in (
        ("epoch", table.epoch),
        ("version", table.version),
        ("bytes", to_bytes(table, SECRET)),
    ):
        await client.hset(key, name, value)


async def publish(client: "redis.asyncio.Redis", table: RoutingTable) -> None:
    await store(client, table)
    await client.publish(f"{PREFIX}:table", f"{table.epoch}.{table.version}")


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """The client of Redis can take a cancel for a time-out of its own, so it is asked again."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=0.5)


@dataclass
class Web:
    """The internal endpoint, and what it was asked."""

    url: str = ""
    table: bytes | None = None
    status: int = 200
    asked: list[dict[str, str]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    states: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Target, authorization and content of what was posted."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        if method == "POST":
            content = await reader.readexactly(int(headers["content-length"]))
            self.states.append((target, headers["authorization"], json.loads(zlib.decompress(content))))
            writer.write(b"HTTP/1.1 204 X\r\n\r\n")
            writer.close()
            return
        self.targets.append(target)
        self.asked.append(headers)
        body, status = self.table or b"", self.status if self.table else 204
        framing = "transfer-encoding: chunked" if body else "x: y"
        content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b""
        writer.write(f"HTTP/1.1 {status} X\r\n{framing}\r\n\r\n".encode() + content)
        writer.close()

    @property
    def beat(self) -> dict[str, Any]:
        beat: dict[str, Any] = json.loads(base64.urlsafe_b64decode(self.asked[-1]["x-sluice-heartbeat"]))
        return beat


@asynccontextmanager
async def run_web() -> AsyncIterator[Web]:
    web = Web()
    server = await asyncio.start_server(web.answer, "127.0.0.1", 0)
    web.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield web


async def test_a_stored_table_is_read_at_the_start_and_kept_on_disk(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    table = make_table(make_release(1, await rig.start_engine()), version=4)
    await publish(client, table)

    await rig.serve(None, redis_url=valkey.url)

    await rig.until(lambda: rig.gateway.plane.routes.order == (1, 4))
    file = rig.folder / "gateway" / "table-0.bin"
    await rig.until(lambda: file.exists() and file.read_bytes() == to_bytes(table, SECRET))
    assert (await rig.ask()).status == 200


async def test_a_published_table_is_applied_and_acknowledged_at_once(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    await rig.serve(None, redis_url=valkey.url)
    await publish(client, make_table(version=1))
    await rig.until(lambda: rig.gateway.plane.routes.order == (1, 1))
    loop = asyncio.get_running_loop()

    async with client.pubsub(ignore_subscribe_messages=True) as beats:
        await beats.subscribe(f"{PREFIX}:gateways")
        await beats.get_message(timeout=2)
        started_s = loop.time()
        await publish(client, make_table(version=2))
        async with asyncio.timeout(2):
            while True:
                message = await beats.get_message(timeout=2)
                if message and json.loads(message["data"])["version"] == 2:
                    break

    assert loop.time() - started_s < 0.3


async def test_a_beat_says_what_control_needs(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    await publish(client, make_table(make_release(1, await rig.start_engine())))
    await rig.serve(None, redis_url=valkey.url)
    await rig.until(lambda: rig.gateway.plane.routes.order)
    await rig.ask()
    key = f"{PREFIX}:gateway:{rig.config.gateway_id}"

    async with asyncio.timeout(5):
        beat: dict[str, Any] = {}
        while not (beat.get("nodes") or {}).get("node-1"):
            beat = json.loads(await client.get(key) or b"{}")
            await asyncio.sleep(0.02)

    assert beat["id"] == rig.config.gateway_id
    assert (beat["epoch"], beat["version"], beat["in_flight"], beat["draining"]) == (1, 1, 0, False)
    assert beat["applied_at"].endswith("+00:00")
    assert set(beat["replicas"]["r1"]) == {
        "in_flight", "last_answer_age_s", "last_request_age_s", "last_sent_at",
    }  # fmt: skip
    assert abs(beat["replicas"]["r1"]["last_sent_at"] - time.time()) < 60
    assert beat["releases"]["m"]["1"] == {"requests": 1, "errors": 0, "interrupted": 0, "spilled_errors": 0}
    assert 0 < await client.ttl(key) <= 10


async def test_a_table_whose_news_was_lost_is_found_within_seconds(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    await rig.serve(None, redis_url=valkey.url)

    await store(client, make_table(version=3))

    await rig.until(lambda: rig.gateway.plane.routes.order == (1, 3), within_s=3.0)


async def test_facts_arrive_in_the_stream(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine())), redis_url=valkey.url)

    await rig.ask(stream=True, stream_options={"include_usage": True})

    async with asyncio.timeout(5):
        entries: Any = await client.xread({f"{PREFIX}:facts": 0}, block=4000)
    (fact,) = json.loads(entries[0][1][0][1][b"b"])
    assert (fact["model"], fact["release"], fact["replica"], fact["outcome"]) == ("m", 1, "r1", "ok")
    assert (fact["output_tokens"], fact["attempts"], fact["spilled"]) == (7, 1, False)
    assert 0 < fact["ttft_s"] <= fact["e2e_s"]


async def test_fc47_without_redis_the_gateway_serves_and_facts_are_bounded(rig: Rig) -> None:
    table = make_table(make_release(1, await rig.start_engine()))
    await rig.serve(table, redis_url=f"unix://{rig.folder}/no-redis.sock?db=0")
    rig.gateway.plane.facts._capacity = 3

    answers = [await rig.ask() for _ in range(5)]

    assert [answer.status for answer in answers] == [200] * 5
    assert (len(rig.gateway.plane.facts), rig.gateway.plane.facts.dropped) == (3, 2)
    assert b"sluice_facts_dropped_total 2" in (await rig.get("/metrics")).body


async def test_without_redis_tables_come_from_web_and_are_acknowledged(rig: Rig) -> None:
    async with run_web() as web:
        web.table = to_bytes(make_table(make_release(1, await rig.start_engine()), version=6), SECRET)
        await rig.serve(None, web_url=web.url, installation=None)
        await rig.until(lambda: rig.gateway.plane.routes.order == (1, 6))
        web.table = None
        await rig.until(lambda: len(web.asked) >= 2)

    assert f"/internal/routing-table?gateway={rig.config.gateway_id}&applied=1.6" in web.targets
    assert web.asked[0]["authorization"] == f"Bearer {derive_internal_token(SECRET)}"
    assert web.beat["version"] == 6
    assert (await rig.ask()).status == 200


async def test_web_is_asked_only_while_redis_is_silent(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    await publish(client, make_table(version=1))
    async with run_web() as web:
        await rig.serve(None, redis_url=valkey.url, web_url=web.url)
        await rig.until(lambda: rig.gateway.plane.routes.order == (1, 1))
        asked_before = len(web.asked)
        web.table = to_bytes(make_table(version=2), SECRET)

        valkey.process.send_signal(19)  # SIGSTOP: it hangs, which is worse than gone.
        try:
            await rig.until(lambda: rig.gateway.plane.routes.order == (1, 2), within_s=3.0)
        finally:
            valkey.process.send_signal(18)
        web.table = None
        await publish(client, make_table(version=3))
        await rig.until(lambda: rig.gateway.plane.routes.order == (1, 3), within_s=5.0)

    assert asked_before <= 1


async def test_redis_is_found_again_after_its_restart(rig: Rig, valkey: RunningServer) -> None:
    await rig.serve(make_table(), redis_url=valkey.url)
    folder = Path(valkey.url.removeprefix("unix://").partition("?")[0]).parent.parent
    valkey.stop()
    await asyncio.sleep(0)

    again = start_valkey(folder / "valkey", folder / "run", durable=False)
    try:
        client = redis.asyncio.Redis.from_url(again.url)
        await publish(client, make_table(version=2))
        await rig.until(lambda: rig.gateway.plane.routes.order == (1, 2))
        await client.aclose()
    finally:
        again.stop()


@pytest.mark.parametrize("status", [401, 500])
async def test_an_answer_of_web_that_is_no_table_changes_nothing(rig: Rig, status: int) -> None:
    async with run_web() as web:
        web.table, web.status = b"an error page", status
        await rig.serve(make_table(), web_url=web.url)
        await rig.until(lambda: len(web.asked) >= 2)

    assert rig.gateway.plane.routes.order == (1, 1)


async def test_a_fetch_that_cannot_succeed_says_so(rig: Rig) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(FetchFailed):
        await fetch(f"http://127.0.0.1:{port}", "/", headers={})
    server.close()
    await server.wait_closed()
    with pytest.raises(FetchFailed):
        await fetch(f"http://127.0.0.1:{port}", "/", headers={})


async def test_what_pages_show_of_a_process_is_stored_with_each_beat(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    gateway = await rig.serve(make_table(), redis_url=valkey.url)
    delivery = Delivery(gateway.plane, describe=lambda now_s: {"models": {"m": {"releases": {1: {}}}}})
    tasks = delivery.start()

    key, name = f"{PREFIX}:gateway-state", rig.config.gateway_id
    async with asyncio.timeout(5):
        content = None
        while content is None:
            content = await client.hget(key, name)
            await asyncio.sleep(0.02)
    await end(tasks)

    state = json.loads(content)
    assert "m" in state["models"]
    assert state["at"].endswith("+00:00")
    assert 0 < await client.ttl(key) <= 60


async def ask_new_process(rig: Rig, table: RoutingTable, url: str, worker: int) -> Response:
    gateway = await rig.serve(table, redis_url=url, worker=worker)
    store = gateway.plane.answers._store
    await rig.until(lambda: store.is_open(asyncio.get_running_loop().time()))
    answer = await rig.ask(temperature=0)
    await rig.until(lambda: not store._tasks)
    return answer


async def test_a_kept_answer_outlives_its_process(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis"
) -> None:
    engine = await rig.start_engine()
    table = make_table(make_release(1, engine), settings=ModelSettings(cache_s=60.0))
    answers = [await ask_new_process(rig, table, valkey.url, worker) for worker in (0, 1)]

    assert [answer.headers["x-sluice-cache"] for answer in answers] == ["miss", "hit"]
    assert answers[1].body == answers[0].body


async def test_a_gateway_shares_what_it_knows_while_it_delivers(rig: Rig, valkey: RunningServer) -> None:
    gateway = await rig.serve(make_table(), redis_url=valkey.url)
    view, limits = SharedView("me"), Limits(has_ledger=True)
    routes = gateway.plane.routes
    sharing = Sharing(valkey.url, view, limits, prefix=lambda: f"sluice:{routes.installation}")
    tasks = Delivery(gateway.plane, sharing=sharing).start()

    await rig.until(lambda: limits.is_settled and view.is_fresh(asyncio.get_running_loop().time()))
    await end(tasks)


@pytest.mark.parametrize("news_is_lost", [False, True])
async def test_a_revoked_key_is_refused_within_five_seconds(
    rig: Rig, valkey: RunningServer, client: "redis.asyncio.Redis", *, news_is_lost: bool
) -> None:
    release = make_release(1, await rig.start_engine())
    await publish(client, make_table(release))
    await rig.serve(None, redis_url=valkey.url)
    await rig.until(lambda: rig.gateway.plane.routes.order)
    connection = await rig.connect()
    connection.send(chat_request())
    assert (await connection.read_response()).status == 200

    tell = store if news_is_lost else publish
    await tell(client, make_table(release, version=2, keys=()))

    async with asyncio.timeout(5):
        status = 200
        while status == 200:
            connection.send(chat_request())
            status = (await connection.read_response()).status
            await asyncio.sleep(0.05)
    assert status == 401


async def test_web_is_told_what_pages_show_only_while_redis_is_silent(
    rig: Rig, valkey: RunningServer
) -> None:
    async with run_web() as web:
        await rig.serve(make_table(), redis_url=valkey.url, web_url=web.url)
        await asyncio.sleep(1.5)
        before = len(web.states)

        valkey.stop()
        await rig.until(lambda: len(web.states) >= before + 2)

    target, authorization, state = web.states[-1]
    assert before <= 1  # Until Redis gave its first sign.
    assert target == f"/internal/gateway-state?gateway={rig.config.gateway_id}"
    assert authorization == f"Bearer {derive_internal_token(SECRET)}"
    assert set(state) >= {"at", "models", "limits"}
