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


async def test_an_idle_engine_is_never_held_for_hung(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine()))
    await rig.ask()

    await asyncio.sleep(2 * SILENCE_S)

    assert (await rig.ask()).status == 200
    assert rig.replica().breaker.counts == {}
