"""FC-37: long prompts stand in front of nobody, over real sockets and engines that prefill one after the other."""

import asyncio
import time
from dataclasses import replace

import pytest

from pool.domain.gateway_settings import LaneSettings
from pool.domain.routing_table import LaneRoute
from tests.pool.gateway.rig import Rig, chat_body, chat_request, make_release, make_table

LONG_TOKENS = 10_000
MS_PER_KTOK = 100.0
"""10,000 tokens take a second: 60,000 at 500 ms per 1,000, scaled 1 : 30."""
PREFILL_S = LONG_TOKENS / 1000 * MS_PER_KTOK / 1000
SHORT = 50
ONE_LANE = (LaneRoute("all", None, LaneSettings(adaptive=False)),)
LANES = (
    LaneRoute("short", 2048, LaneSettings(ttft_target_ms=300, weight=4, adaptive=False)),
    LaneRoute("long", None, LaneSettings(ttft_target_ms=2000, concurrency=2, weight=1, adaptive=False)),
)


async def serve(rig: Rig, lanes: tuple[LaneRoute, ...]) -> None:
    routes = [
        replace(
            await rig.start_engine(
                name, serial_prefill=True, ms_per_ktok=MS_PER_KTOK, max_ctx=65_536, chunks=3, gap_s=0.005
            ),
            max_model_len=65_536,
        )
        for name in ("r1", "r2")
    ]
    await rig.serve(make_table(make_release(1, *routes), lanes=lanes))


async def time_first_token(rig: Rig, prompt: str) -> tuple[float, str]:
    """Seconds to it, and the lane."""
    client = await rig.connect()
    started_s = time.monotonic()
    client.send(chat_request(chat_body(prompt, stream=True)))
    await client.read_until(b"data: ")
    ttft_s = time.monotonic() - started_s
    answer = await client.read_response()
    assert answer.events[-1] == "[DONE]"
    return ttft_s, answer.headers["x-sluice-lane"]


async def run_mix(rig: Rig) -> tuple[list[float], list[float]]:
    """Times to first token of short and of long prompts, each sorted."""
    long_prompts = [f"{number} " + "word " * int(LONG_TOKENS * 4 / 5) for number in range(2)]
    longs = [asyncio.create_task(time_first_token(rig, prompt)) for prompt in long_prompts]
    await rig.until(lambda: sum(len(engine.completions) for engine in rig.engines.values()) >= 1)
    await asyncio.sleep(0.05)
    shorts = []
    for number in range(SHORT):
        shorts.append(asyncio.create_task(time_first_token(rig, f"A short question {number}?")))
        await asyncio.sleep(0.01)
    short = sorted(ttft_s for ttft_s, _ in await asyncio.gather(*shorts))
    return short, sorted(ttft_s for ttft_s, _ in await asyncio.gather(*longs))


def p95(times: list[float]) -> float:
    return times[int(len(times) * 0.95)]


async def test_with_lanes_short_prompts_pass_and_long_ones_finish(rig: Rig) -> None:
    await serve(rig, LANES)

    short, long = await run_mix(rig)

    assert p95(short) < 0.35 * PREFILL_S
    assert long[0] < 1.5 * PREFILL_S + 0.5
    # The second one has waited for the replica that longer ones may hold, and no longer.
    assert long[1] < 2.5 * PREFILL_S + 0.5


async def test_with_one_lane_they_stand_behind_the_long_ones(rig: Rig) -> None:
    await serve(rig, ONE_LANE)

    short, _ = await run_mix(rig)

    assert p95(short) > 0.6 * PREFILL_S


@pytest.mark.parametrize("longs", [12])
async def test_the_long_lane_never_starves(rig: Rig, longs: int) -> None:
    await serve(rig, LANES)
    stop = asyncio.Event()

    async def ask_short() -> None:
        while not stop.is_set():
            await time_first_token(rig, "A short question?")

    callers = [asyncio.create_task(ask_short()) for _ in range(4)]
    prompts = [f"{number} " + "word " * 2400 for number in range(longs)]
    results = await asyncio.gather(*(time_first_token(rig, prompt) for prompt in prompts))
    stop.set()
    await asyncio.gather(*callers)

    assert {lane for _, lane in results} == {"long"}
    # 12 prompts of 0.3 s on one of two replicas.
    assert max(ttft_s for ttft_s, _ in results) < 12 * 0.3 * 1.5


async def test_the_lane_is_in_the_header_and_in_the_record(rig: Rig) -> None:
    await serve(rig, LANES)

    lanes = [(await time_first_token(rig, prompt))[1] for prompt in ("Short?", "word " * 3000)]

    assert lanes == ["short", "long"]
    assert [record["lane"] for record in rig.gateway.plane.facts.take(10)] == lanes
