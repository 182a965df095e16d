"""FC-15: a breaker that counts the engine's faults only, lets it back, and never closes the last door."""

import asyncio
from typing import Any

import pytest

from tests.pool.gateway.rig import PIN_KEY, Rig, chat_request, make_release, make_table
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
    assert 1 <= statuses.count(500) <= 6
    assert 200 in statuses[:10]

    rig.engines["r1"].switches.err = None
    before = len(rig.engines["r1"].completions)
    async with asyncio.timeout(10):
        while len(rig.engines["r1"].completions) < before + 5:
            # One that failed lately is passed over while another is idle.
            answers = await asyncio.gather(*(rig.ask(prompt="word " * 400) for _ in range(8)))
            assert {answer.status for answer in answers} == {200}
    assert rig.replica("r1").breaker.closed


async def test_the_only_replica_still_gets_a_trial(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(err=500)))
    for _ in range(3):
        assert (await rig.ask()).status == 500
    assert not rig.replica().breaker.closed

    rig.engines["r1"].switches.err = None

    assert [(await rig.ask()).status for _ in range(3)] == [200] * 3
    assert rig.replica().breaker.closed


async def test_while_the_only_replica_is_tried_the_others_are_refused_fast(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(err=500)))
    for _ in range(3):
        await rig.ask()
    engine = rig.engines["r1"]
    engine.switches.err = None
    engine.freeze()
    trial = asyncio.create_task(rig.ask())
    await rig.until(lambda: len(engine.completions) == 4)

    async with asyncio.timeout(1):
        refused = await rig.ask()
    engine.thaw()

    assert refused.status == 503
    assert int(refused.headers["retry-after"]) > 0
    assert (await trial).status == 200
    assert len(engine.completions) == 4
    assert (await rig.ask()).status == 200


async def test_a_trial_that_streams_for_long_holds_nobody_up(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(err=500)))
    for _ in range(3):
        await rig.ask()
    engine = rig.engines["r1"]
    engine.switches.err, engine.switches.gap_s, engine.switches.chunks = None, 0.05, 100
    trial = await rig.connect()
    trial.send(chat_request(stream=True))
    await trial.read_until(b"data:")

    answer = await rig.ask(max_tokens=1)

    assert answer.status == 200
    assert rig.replica().breaker.closed


async def test_an_engine_that_always_breaks_its_streams_is_left_out(rig: Rig) -> None:
    breaking, sound = await rig.start_engine("r1", close_at=3), await rig.start_engine("r2")
    await rig.serve(make_one(breaking, sound))

    answers = [await rig.ask(stream=True) for _ in range(40)]

    assert sum(answer.events[-1] != "[DONE]" for answer in answers) <= 6
    assert rig.replica("r1").breaker.counts["broken"] >= 1


async def test_a_pinned_caller_of_a_dead_release_gets_its_trial_too(rig: Rig) -> None:
    failing, sound = await rig.start_engine("r1", err=500), await rig.start_engine("r2")
    table = make_table(make_release(1, sound), make_release(2, failing), weights={1: 100, 2: 0})
    await rig.serve(table)
    pin: dict[str, Any] = {"key": PIN_KEY, "headers": {"x-sluice-release": "2"}}
    for _ in range(4):
        assert (await rig.ask(**pin)).status == 500
    rig.engines["r1"].switches.err = None

    assert (await rig.ask(**pin)).status == 200
