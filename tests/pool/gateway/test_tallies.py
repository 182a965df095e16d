"""What a gateway says of each release's requests with its beat, and of the last one that it sent to a replica."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from pool.domain.traffic import choose_release
from pool.gateway.beats import build_beat
from pool.gateway.tallies import Tallies
from tests.pool.gateway.rig import Rig, chat_request, make_release, make_replica, make_table


def beat_of(rig: Rig) -> dict[str, Any]:
    beat = orjson.loads(build_beat(rig.gateway.plane, now_s=asyncio.get_running_loop().time()))
    assert isinstance(beat, dict)
    return beat


def counts(**more: int) -> dict[str, int]:
    return {"requests": 0, "errors": 0, "interrupted": 0, "spilled_errors": 0, **more}


async def test_answers_failures_and_cut_streams_are_told_by_release(rig: Rig) -> None:
    await rig.serve(make_table(make_release(3, await rig.start_engine("r1", close_at=2))))

    await rig.ask(max_tokens=1)
    await rig.ask(stream=True)

    told = beat_of(rig)["releases"]["m"]
    assert told == {"3": counts(requests=2, errors=1, interrupted=1)}


async def test_a_request_that_another_release_had_to_answer_counts_against_the_one_that_failed(
    rig: Rig,
) -> None:
    bad = make_release(2, make_replica("r2", f"unix:{rig.folder}/nobody.sock"))
    good = make_release(1, await rig.start_engine("r1"))
    await rig.serve(make_table(good, bad, weights={1: 1, 2: 99}))
    session = {"x-sluice-session": find_session(2, {1: 1, 2: 99})}

    answer = await rig.ask(headers=session)

    assert answer.status == 200
    told = beat_of(rig)["releases"]["m"]
    assert told == {"1": counts(requests=1), "2": counts(spilled_errors=1)}


async def test_a_request_that_its_release_could_not_even_take_counts_against_it(rig: Rig) -> None:
    empty, good = make_release(2), make_release(1, await rig.start_engine("r1"))
    await rig.serve(make_table(good, empty, weights={1: 1, 2: 99}))

    await rig.ask(headers={"x-sluice-session": find_session(2, {1: 1, 2: 99})})

    assert beat_of(rig)["releases"]["m"]["2"] == counts(spilled_errors=1)


async def test_what_was_refused_before_any_engine_counts_for_none(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1)))

    answer = await rig.ask()

    assert answer.status == 503
    assert beat_of(rig)["releases"] == {}


async def test_the_last_request_is_told_with_the_moment_of_its_sending(rig: Rig) -> None:
    await rig.serve(
        make_table(make_release(1, await rig.start_engine("r1"), make_replica("idle", "unix:/none")))
    )
    before = time.time()

    await rig.ask()

    replicas = beat_of(rig)["replicas"]
    sent = {name for name, one in replicas.items() if "last_sent_at" in one}
    (name,) = sent
    assert before - 0.01 <= replicas[name]["last_sent_at"] <= time.time() + 0.01


async def test_running_streams_are_told_by_replica(rig: Rig) -> None:
    await rig.serve(make_table(make_release(1, await rig.start_engine("r1", chunks=200, gap_s=0.02))))
    assert "streams" not in beat_of(rig)["replicas"]["r1"]
    client = await rig.connect()
    client.send(chat_request(stream=True, max_tokens=200))
    await client.read_until(b'"content"')

    told = beat_of(rig)["replicas"]["r1"]

    assert (told["streams"], told["in_flight"]) == (1, 1)


def test_tallies_are_kept_by_model_and_release() -> None:
    tallies = Tallies()

    tallies.of("m", 1).requests += 1
    tallies.of("m", 1).requests += 1
    tallies.of("n", 1).errors += 1

    assert tallies.tell() == {"m": {"1": counts(requests=2)}, "n": {"1": counts(errors=1)}}


def find_session(release: int, weights: dict[int, int]) -> str:
    return next(name for name in map(str, range(1000)) if choose_release(weights, name.encode()) == release)


async def test_a_beat_tells_what_each_lane_of_a_replica_runs_at_once(rig: Rig) -> None:
    await rig.serve(make_table(make_release(3, await rig.start_engine("r1"))))

    limits = beat_of(rig)["limits"]["r1"]

    assert limits
    assert {reason for _, reason in limits.values()} == {"start"}
    assert all(limit >= 1 for limit, _ in limits.values())
