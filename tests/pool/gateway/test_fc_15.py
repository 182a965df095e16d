"""FC-15: a breaker that counts the engine's faults only, lets it back, and never closes the last door."""

import asyncio

import pytest

from tests.pool.gateway.rig import Rig
from tests.pool.gateway.tables import make_one


@pytest.mark.parametrize("prompt", ["ERR:400", "ERR:404", "ERR:422", "ERR:429"])
async def test_what_callers_do_wrong_never_opens_it(rig: Rig, prompt: str) -> None:
    await rig.serve(make_one(await rig.start_engine()))

    for _ in range(50):
        assert (await rig.ask(prompt=prompt)).status == int(prompt[4:])

    breaker = rig.replica().breaker
    assert (breaker.closed, breaker.counts, breaker.error_score) == (True, {}, 0.0)


async def test_50_requests_over_the_context_leave_it_closed(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(max_ctx=16)))

    for _ in range(50):
        assert (await rig.ask(prompt="much too long " * 20)).status == 400

    assert rig.replica().breaker.closed


async def test_a_failing_engine_is_left_out_and_taken_back(rig: Rig) -> None:
    failing, sound = await rig.start_engine("r1", err=500), await rig.start_engine("r2")
    await rig.serve(make_one(failing, sound))

    statuses = [(await rig.ask()).status for _ in range(60)]
    assert 3 <= statuses.count(500) <= 6
    assert 200 in statuses[:10]

    rig.engines["r1"].switches.err = None
    before = len(rig.engines["r1"].completions)
    async with asyncio.timeout(10):
        while len(rig.engines["r1"].completions) < before + 5:
            assert (await rig.ask()).status == 200
    assert rig.replica("r1").breaker.closed


async def test_an_engine_that_always_breaks_its_streams_is_left_out(rig: Rig) -> None:
    breaking, sound = await rig.start_engine("r1", close_at=3), await rig.start_engine("r2")
    await rig.serve(make_one(breaking, sound))

    answers = [await rig.ask(stream=True) for _ in range(40)]

    assert sum(answer.events[-1] != "[DONE]" for answer in answers) <= 6
    assert rig.replica("r1").breaker.describe(0.0)["last_reason"] == "broken"
