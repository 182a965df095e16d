"""FC-26 and FC-01 as a gateway sees them: a busy engine is left alone, a hung one is found by its silence."""

import asyncio

import pytest

from tests.pool.gateway.rig import Rig
from tests.pool.gateway.tables import make_one

SILENCE_S = 0.3
"""Instead of 8 s."""


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pool.domain.progress.SILENCE_S", SILENCE_S)
    monkeypatch.setattr("pool.domain.breaker.SHORTEST_HUNG_S", 2.0)


async def test_a_queue_at_a_slow_engine_is_no_hang(rig: Rig) -> None:
    slow = await rig.start_engine(slots=1, serial_prefill=True, ms_per_ktok=1_000)
    await rig.serve(make_one(slow))

    answers = await asyncio.gather(*(rig.ask(prompt="word " * 160, stream=True) for _ in range(8)))

    assert {answer.events[-1] for answer in answers} == {"[DONE]"}
    assert rig.replica().breaker.counts == {}


async def test_one_long_prefill_is_no_hang(rig: Rig) -> None:
    slow = await rig.start_engine(slots=1, serial_prefill=True, ms_per_ktok=800)
    await rig.serve(make_one(slow))

    answers = await asyncio.gather(*(rig.ask(prompt="word " * 800, stream=True) for _ in range(2)))

    assert {answer.events[-1] for answer in answers} == {"[DONE]"}
    assert rig.replica().breaker.counts == {}


async def test_fc01_ten_requests_at_a_hung_and_a_sound_engine_all_end(rig: Rig) -> None:
    hung, sound = await rig.start_engine("r1", hang_after=3), await rig.start_engine("r2")
    await rig.serve(make_one(hung, sound, first_byte_timeout_s=1.0, total_timeout_s=1.5))
    for _ in range(8):
        await rig.ask()

    asked = [asyncio.create_task(rig.ask(stream=bool(number % 2))) for number in range(10)]
    await rig.until(lambda: not rig.replica("r1").breaker.closed, within_s=1.0)
    before = len(rig.engines["r1"].completions)
    late = [await rig.ask() for _ in range(10)]
    answers = await asyncio.gather(*asked)

    assert rig.replica("r1").breaker.reason == "hung"
    assert {one.headers["x-sluice-replica"] for one in late} == {"r2"}
    assert len(rig.engines["r1"].completions) == before
    assert {one.status for one in answers} <= {200, 504}


async def test_an_engine_that_moves_again_is_taken_back_by_its_first_byte(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine("r1"), await rig.start_engine("r2")))
    rig.engines["r1"].freeze()
    asked = [asyncio.create_task(rig.ask()) for _ in range(8)]
    await rig.until(lambda: rig.replica("r1").breaker.reason == "hung", within_s=2.0)

    rig.engines["r1"].thaw()
    answers = await asyncio.gather(*asked)

    assert {answer.status for answer in answers} == {200}
    await rig.until(lambda: rig.replica("r1").breaker.closed, within_s=1.0)


async def test_a_hung_engine_without_another_refuses_fast_instead_of_waiting(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(), first_byte_timeout_s=5.0))
    rig.engines["r1"].freeze()
    asked = [asyncio.create_task(rig.ask()) for _ in range(2)]
    await rig.until(lambda: not rig.replica().breaker.closed, within_s=2.0)
    asked.append(asyncio.create_task(rig.ask()))
    await rig.until(lambda: len(rig.engines["r1"].completions) == 3)

    async with asyncio.timeout(1):
        refused = await rig.ask()
    rig.engines["r1"].thaw()

    assert refused.status == 503
    assert [(await one).status for one in asked] == [200] * 3


async def test_an_idle_engine_is_never_held_for_hung(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine()))
    await rig.ask()

    await asyncio.sleep(2 * SILENCE_S)

    assert (await rig.ask()).status == 200
    assert rig.replica().breaker.counts == {}
