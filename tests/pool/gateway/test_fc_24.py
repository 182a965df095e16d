"""FC-24: whatever callers and engines do, no slot is lost: an idle gateway counts nothing."""

import asyncio
import random
import socket
from typing import Any

from pool.domain.gateway_settings import LaneSettings
from pool.domain.routing_table import LaneRoute
from tests.pool.gateway.rig import Rig, chat_request, make_release, make_table

CALLS = 500
TIGHT = LaneSettings(
    concurrency=3, queue_limit=10, queue_timeout_s=0.3, idle_timeout_s=0.5, total_timeout_s=3.0
)


async def call(rig: Rig, dice: random.Random) -> None:
    prompt = dice.choice(["fine"] * 5 + ["ERR:429", "ERR:500", "ERR:503", "ERR:400"])
    fields: dict[str, Any] = {"stream": dice.random() < 0.6, "max_tokens": dice.choice([1, 5, 20])}
    if dice.random() < 0.1:
        fields["temperature"] = -5
    connection = await rig.connect()
    kind = dice.random()
    if kind < 0.05:
        connection.send(chat_request(prompt=prompt, **fields)[: dice.randrange(10, 200)])
        await asyncio.sleep(0.02)
        connection.abort()
        return
    connection.send(chat_request(prompt=prompt, **fields))
    if kind < 0.5:
        await asyncio.sleep(dice.random() * 0.1)
        dice.choice([connection.close, connection.abort])()
    else:
        await connection.read_response()


def stall(port: int) -> socket.socket:
    """A caller that asks for a long stream and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", port))
    client.sendall(chat_request(stream=True, prompt="stalled"))
    return client


async def test_every_count_is_zero_after_mixed_calls_and_one_slot_still_works(rig: Rig) -> None:
    replicas = [await rig.start_engine(name, gap_s=0.002, chunks=20, text="x" * 400) for name in ("r1", "r2")]
    lanes = (LaneRoute("default", None, TIGHT),)
    table = make_table(make_release(1, *replicas), lanes=lanes)
    await rig.serve(table, write_timeout_s=0.3)
    dice = random.Random(24)

    stalled = [await asyncio.to_thread(stall, rig.gateway.port) for _ in range(3)]
    for _ in range(CALLS // 50):
        await asyncio.gather(*(call(rig, dice) for _ in range(50)))
    plane = rig.gateway.plane
    await rig.until(lambda: not plane.exchanges)
    for client in stalled:
        client.close()

    for replica in plane.routes.replicas:
        counts = (replica.in_flight, replica.in_flight_tokens, replica.prefill_tokens, replica.long_in_flight)
        assert counts == (0, 0, 0, 0)
        assert set(replica.lane_in_flight.values()) <= {0}
    (gate,) = plane.routes.models["m"].gates.values()
    assert gate.waiting == 0
    page = (await rig.get("/metrics")).body.decode()
    assert all(
        line.endswith((" 0", " 0.0")) for line in page.splitlines() if line.startswith("sluice_in_flight{")
    )
    await rig.until(lambda: all(engine.running == 0 for engine in rig.engines.values()))

    one = LaneRoute("default", None, LaneSettings(concurrency=1, adaptive=False, queue_limit=0))
    rig.apply(make_table(make_release(1, replicas[0]), lanes=(one,), version=2))
    rig.replica("r1").breaker.note_success(asyncio.get_running_loop().time())
    assert [(await rig.ask(max_tokens=1)).status for _ in range(5)] == [200] * 5
