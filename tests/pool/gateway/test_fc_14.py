"""FC-14: a request that kills engines gets two at most, and none when it comes again."""

import asyncio

import pytest

from tests.pool.gateway.rig import Response, Rig
from tests.pool.gateway.tables import make_busy, make_one


async def serve_three(rig: Rig, *, gap_s: float = 0.0) -> None:
    names = ("r1", "r2", "r3")
    replicas = [await rig.start_engine(name, poison="KILLME", gap_s=gap_s) for name in names]
    await rig.serve(make_one(*replicas))


def count_deaths(rig: Rig) -> int:
    calls = [call for engine in rig.engines.values() for call in engine.completions]
    return sum(b"KILLME" in call.body for call in calls)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_poison_request_is_refused_when_it_comes_again(rig: Rig, stream: bool) -> None:
    await serve_three(rig)

    first = await rig.ask(prompt="KILLME please", stream=stream)
    again = [await rig.ask(prompt="KILLME please", stream=stream) for _ in range(5)]

    assert (first.status, first.error["code"]) == (502, "upstream_failed")
    assert {(one.status, one.error["code"]) for one in again} == {(422, "quarantined")}
    assert again[0].error["type"] == "invalid_request_error"
    assert count_deaths(rig) == 2


async def test_others_are_served_on_after_two_deaths(rig: Rig) -> None:
    await serve_three(rig)

    await rig.ask(prompt="KILLME please")
    answers = [await rig.ask() for _ in range(10)]

    assert {answer.status for answer in answers} == {200}


async def test_who_waits_beside_a_poison_request_is_served_elsewhere(rig: Rig) -> None:
    await serve_three(rig, gap_s=0.02)

    async def ask(number: int) -> Response:
        await asyncio.sleep(number * 0.005)
        return await rig.ask(prompt="KILLME please" if number == 15 else f"question {number}")

    answers = await asyncio.gather(*(ask(number) for number in range(30)))

    poison, others = answers[15], [*answers[:15], *answers[16:]]
    assert (poison.status, poison.error["code"]) == (502, "upstream_failed")
    assert count_deaths(rig) == 2
    # Who was at both deaths cannot be told from the poison; nobody else loses anything.
    assert sum(one.status == 200 for one in others) >= 20
    assert {one.status for one in others} <= {200, 502}


async def test_a_poison_stream_takes_its_neighbours_begun_streams_and_no_more(rig: Rig) -> None:
    await serve_three(rig, gap_s=0.05)
    begun = [asyncio.create_task(rig.ask(prompt=f"question {number}", stream=True)) for number in range(9)]
    await rig.until(lambda: all(engine.running == 3 for engine in rig.engines.values()))
    await asyncio.sleep(0.1)

    await rig.ask(prompt="KILLME please")
    answers = await asyncio.gather(*begun)

    finished = [answer for answer in answers if answer.events[-1] == "[DONE]"]
    assert len(finished) == 3
    assert all("stream_interrupted" in one.events[-1] for one in answers if one not in finished)


async def test_an_innocent_request_that_met_one_death_is_never_refused(rig: Rig) -> None:
    first, second = await rig.start_engine("r1", die_at=0), await rig.start_engine("r2")
    await rig.serve(make_one(first, second))
    make_busy(rig.replica("r2"))

    answers = [await rig.ask(prompt="innocent") for _ in range(5)]

    assert {answer.status for answer in answers} == {200}


async def test_a_poison_core_behind_a_living_api_is_quarantined_too(rig: Rig) -> None:
    replicas = [await rig.start_engine(name, dead_core=True) for name in ("r1", "r2", "r3")]
    await rig.serve(make_one(*replicas))

    await rig.ask(prompt="bad schema")
    again = await rig.ask(prompt="bad schema")

    assert (again.status, again.error["code"]) == (422, "quarantined")
    assert sum(len(engine.completions) for engine in rig.engines.values()) == 2
