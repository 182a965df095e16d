"""Lanes, tiers and guards over real sockets: each lane's time-outs, who is shed first, watermarks by gauges, growth."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.growth import NO_BATCH, NO_STANDARD
from pool.domain.routing_table import LaneRoute
from pool.gateway.gauges import Gauges
from pool.gateway.state import describe_plane
from tests.pool.gateway.rig import (
    KEY,
    Connection,
    Response,
    Rig,
    chat_request,
    make_key,
    make_release,
    make_table,
)

VIP, BATCH = "sk-sluice-vip", "sk-sluice-batch"
TIERS = (make_key(KEY), make_key(VIP, tier="vip"), make_key(BATCH, tier="batch"))
LONG = "word " * 400
"""About 400 tokens: over the edge of the shortest lane."""
FIXED: dict[str, Any] = {"adaptive": False}


def lanes(short: dict[str, Any] | None = None, long: dict[str, Any] | None = None) -> tuple[LaneRoute, ...]:
    return (
        LaneRoute("short", 100, LaneSettings(**(short or {}))),
        LaneRoute("long", None, LaneSettings(**(long or {}))),
    )


async def serve(
    rig: Rig,
    routes: tuple[LaneRoute, ...],
    *,
    settings: dict[str, Any] | None = None,
    replica: dict[str, Any] | None = None,
    **switches: Any,
) -> None:
    route = replace(await rig.start_engine(**switches), **(replica or {}))
    await rig.serve(
        make_table(
            make_release(1, route), lanes=routes, keys=TIERS, settings=ModelSettings(**(settings or {}))
        )
    )


async def send(rig: Rig, **more: Any) -> Connection:
    client = await rig.connect()
    client.send(chat_request(**more))
    return client


async def fill(rig: Rig, count: int, **more: Any) -> list[Connection]:
    """Streams that run, once this returns."""
    before = len(rig.engines["r1"].completions)
    clients = [await send(rig, stream=True, **more) for _ in range(count)]
    await rig.until(lambda: len(rig.engines["r1"].completions) == before + count)
    return clients


async def queue_up(rig: Rig, count: int, **more: Any) -> list[Connection]:
    (gate,) = rig.gateway.plane.routes.models["m"].gates.values()
    before = gate.waiting
    clients = [await send(rig, max_tokens=1, **more) for _ in range(count)]
    await rig.until(lambda: gate.waiting == before + count)
    return clients


def long_body() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": LONG}]}


# Time-outs of each lane.
@pytest.mark.parametrize("is_long", [False, True])
async def test_each_lane_has_its_own_first_byte_limit(rig: Rig, is_long: bool) -> None:
    await serve(rig, lanes({"first_byte_timeout_s": 0.2}, {"first_byte_timeout_s": 5.0}), first_s=0.8)

    answer = await rig.ask(stream=True, **(long_body() if is_long else {}))

    assert answer.status == (200 if is_long else 504)


@pytest.mark.parametrize("is_long", [False, True])
async def test_each_lane_has_its_own_idle_limit(rig: Rig, is_long: bool) -> None:
    await serve(rig, lanes({"idle_timeout_s": 0.2}, {"idle_timeout_s": 5.0}), gap_s=0.7, chunks=2)

    answer = await rig.ask(stream=True, **(long_body() if is_long else {}))

    assert (answer.events[-1] == "[DONE]") is is_long


@pytest.mark.parametrize("stream", [False, True])
async def test_each_lane_has_its_own_total_limit(rig: Rig, stream: bool) -> None:
    await serve(rig, lanes({"total_timeout_s": 0.4}, {"total_timeout_s": 9.0}), gap_s=0.05, chunks=20)

    short = await rig.ask(stream=stream)
    long = await rig.ask(stream=stream, **long_body())

    assert short.status == (200 if stream else 504)
    assert b"[DONE]" not in short.body
    assert long.status == 200
    assert not stream or long.events[-1] == "[DONE]"


async def test_each_lane_has_its_own_queue_limits(rig: Rig) -> None:
    one: dict[str, Any] = {**FIXED, "concurrency": 1}
    await serve(
        rig,
        lanes({**one, "queue_timeout_s": 0.2}, {**one, "queue_limit": 0}),
        gap_s=0.05,
        chunks=60,
    )
    await fill(rig, 1)
    await fill(rig, 1, **long_body())

    short = await rig.ask()
    long = await rig.ask(**long_body())

    assert (short.status, short.error["code"]) == (429, "queue_timeout")
    assert (long.status, long.error["code"]) == (429, "queue_full")
    assert int(short.headers["retry-after"]) >= 1
    assert int(long.headers["retry-after"]) >= 1


# Tiers.
async def test_batch_is_shed_before_anybody_else(rig: Rig) -> None:
    await serve(rig, lanes({**FIXED, "concurrency": 1, "queue_limit": 4}), gap_s=0.03, chunks=30)
    await fill(rig, 1)
    batch = await queue_up(rig, 2, key=BATCH)
    assert (await rig.ask(key=BATCH)).error["code"] == "shed"
    standard = await queue_up(rig, 2)

    more = await send(rig, max_tokens=1)
    given_up = await batch[1].read_response()

    assert (given_up.status, given_up.error["code"]) == (429, "shed")
    answers = [await client.read_response() for client in (*standard, more, batch[0])]
    assert {answer.status for answer in answers} == {200}


async def test_vip_goes_before_those_that_came_earlier(rig: Rig) -> None:
    await serve(rig, lanes({**FIXED, "concurrency": 1}), gap_s=0.02, chunks=15)
    served: list[list[str]] = []
    # On a machine that stalls, the first may end before the others are there; after half a second the others are
    # overdue, so it cannot be made to last.
    while ["standard", "vip"] not in served and len(served) < 5:
        (first,) = await fill(rig, 1)
        standard = await queue_up(rig, 3)
        (vip,) = await queue_up(rig, 1, key=VIP)
        for client in (first, *standard, vip):
            await client.read_response()
        served.append([record["tier"] for record in rig.gateway.plane.facts.take(10)][:2])

    assert ["standard", "vip"] in served


async def test_the_reserve_and_the_burst_are_for_vip_alone(rig: Rig) -> None:
    """Of 20 slots 4 are the reserve, and one more is the burst."""
    await serve(rig, lanes({**FIXED, "concurrency": 64}), replica={"slots": 20}, gap_s=0.05, chunks=100)
    await fill(rig, 16)
    standard = await queue_up(rig, 1)

    await fill(rig, 5, key=VIP)
    vip = await queue_up(rig, 1, key=VIP)

    assert rig.replica().in_flight == 21
    for client in (*standard, *vip):
        client.abort()


# Watermarks.
def set_gauge(rig: Rig, kv_used_ratio: float | None, *, age_s: float = 0.0) -> None:
    gauges = Gauges(kv_used_ratio=kv_used_ratio, running=0, waiting=0)
    now_s = asyncio.get_running_loop().time()
    rig.gateway.plane.neighbours.take_gauges({("r1", 1): (gauges, age_s)}, now_s)
    (gate,) = rig.gateway.plane.routes.models["m"].gates.values()
    gate.tick(now_s + 1.0)


def level(rig: Rig) -> str:
    now_s = asyncio.get_running_loop().time()
    gate = describe_plane(rig.gateway.plane, now_s)["models"]["m"]["releases"]["1"]["gate"]
    found: str = gate["replicas"]["r1"]["watermark"]["level"]
    return found


async def ask_three(rig: Rig) -> list[str]:
    """A short, a long and a long request of a `vip`: ok or the refusal's code."""
    asks: list[Response] = [
        await rig.ask(), await rig.ask(**long_body()), await rig.ask(key=VIP, **long_body()),
    ]  # fmt: skip
    return [answer.error["code"] if answer.status != 200 else "ok" for answer in asks]


@pytest.mark.parametrize(
    ("ratio", "name", "outcomes"),
    [
        (0.5, "normal", ["ok", "ok", "ok"]),
        (0.75, "warn", ["ok", "ok", "ok"]),
        (0.88, "no_long", ["ok", "overloaded", "overloaded"]),
        (0.97, "short_only", ["ok", "overloaded", "overloaded"]),
    ],
)
async def test_each_watermark_bars_what_it_names(
    rig: Rig, ratio: float, name: str, outcomes: list[str]
) -> None:
    await serve(rig, lanes(), replica={"kv_tokens": 10_000})

    set_gauge(rig, ratio)

    assert level(rig) == name
    assert await ask_three(rig) == outcomes


async def test_a_refusal_by_watermark_is_503_with_a_time_to_come_back(rig: Rig) -> None:
    await serve(rig, lanes(), replica={"kv_tokens": 10_000})
    set_gauge(rig, 0.9)

    answer = await rig.ask(**long_body())

    assert (answer.status, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("ratio", [None, float("nan")])
async def test_fc29_a_gauge_that_says_nothing_opens_no_barrier(rig: Rig, ratio: float | None) -> None:
    await serve(rig, lanes(), replica={"kv_tokens": 10_000})
    set_gauge(rig, 0.97)

    set_gauge(rig, ratio)

    assert level(rig) == "short_only"


async def test_fc29_a_stale_gauge_is_replaced_by_what_the_gateway_knows(rig: Rig) -> None:
    await serve(rig, lanes(), replica={"kv_tokens": 2_000}, gap_s=0.05, chunks=100)
    await fill(rig, 5, max_tokens=300)

    set_gauge(rig, 0.0, age_s=10.0)

    # Five times 307 tokens of 2,000.
    assert level(rig) == "warn"


# Growth.
@pytest.mark.parametrize(("stage", "refused"), [(NO_BATCH, {BATCH}), (NO_STANDARD, {BATCH, KEY})])
async def test_while_pending_requests_grow_the_lower_tiers_are_refused(
    rig: Rig, stage: int, refused: set[str]
) -> None:
    await serve(rig, lanes())
    (gate,) = rig.gateway.plane.routes.models["m"].gates.values()
    gate._lanes["short"].growth.stage = stage  # noqa: SLF001
    gate._is_guarded = True  # noqa: SLF001

    answers = {key: await rig.ask(key=key) for key in (KEY, VIP, BATCH)}

    assert {key for key, answer in answers.items() if answer.status == 429} == refused
    assert {answers[key].error["code"] for key in refused} == {"shed"}
