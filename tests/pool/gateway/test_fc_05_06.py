"""FC-05 and FC-06: a stream that was cut never looks finished, and nothing is generated twice for one caller."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.pool.gateway.rig import Response, Rig, make_replica
from tests.pool.gateway.tables import make_busy, make_one


def last_code(answer: Response) -> str:
    code: str = json.loads(answer.events[-1])["error"]["code"]
    return code


@pytest.mark.parametrize(
    ("switches", "fault"),
    [
        ({"die_at": 5}, "broken"),
        ({"close_at": 5}, "broken"),
        ({"error_at": 5}, "dead_core"),
        ({"bad_json_at": 5}, "broken"),
        ({"stall_at": 5}, "idle_timeout"),
    ],
)
async def test_a_stream_that_the_engine_broke_counts_against_it(
    rig: Rig, switches: dict[str, Any], fault: str
) -> None:
    await rig.serve(make_one(await rig.start_engine(**switches), idle_timeout_s=0.2))

    answer = await rig.ask(stream=True)

    assert last_code(answer) == "stream_interrupted"
    assert "[DONE]" not in answer.events
    assert rig.replica().breaker.counts == {fault: 1}
    page = (await rig.get("/metrics")).body.decode()
    counted = [line for line in page.splitlines() if line.startswith("sluice_requests_total{")]
    assert any('outcome="interrupted"' in line and line.endswith(" 1") for line in counted)


async def test_a_gap_below_the_idle_limit_breaks_nothing_however_long_the_stream(rig: Rig) -> None:
    engine = await rig.start_engine(gap_s=0.1, chunks=14)
    await rig.serve(make_one(engine, idle_timeout_s=0.8, first_byte_timeout_s=0.8))

    answer = await rig.ask(stream=True)

    assert answer.events[-1] == "[DONE]"


async def test_the_total_limit_ends_a_stream_that_never_stalls(rig: Rig) -> None:
    engine = await rig.start_engine(gap_s=0.02, chunks=500)
    await rig.serve(make_one(engine, total_timeout_s=0.3))

    answer = await rig.ask(stream=True)

    assert last_code(answer) == "stream_interrupted"
    assert rig.replica().breaker.counts == {}
    await rig.until(lambda: rig.engines["r1"].completions[0].aborted, within_s=1.0)


async def test_each_lane_has_a_first_byte_limit_of_its_own(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine(hang_after=0), first_byte_timeout_s=0.1))

    answer = await rig.ask(stream=True)

    assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
    assert rig.replica().breaker.counts == {"first_byte_timeout": 1}


async def serve_pair(rig: Rig, *, model: dict[str, Any] | None = None, **switches: Any) -> None:
    """The first, with the switches, is asked first."""
    first, second = await rig.start_engine("r1", **switches), await rig.start_engine("r2")
    await rig.serve(make_one(first, model=model))
    rig.apply(replace(make_one(first, second, model=model), version=2))
    make_busy(rig.replica("r2"))


async def test_one_request_keeps_one_id_over_its_attempts(rig: Rig) -> None:
    await serve_pair(rig, die_at=0)

    answer = await rig.ask(stream=True)

    ids = [rig.engines[name].completions[0].headers["x-request-id"] for name in ("r1", "r2")]
    request_id = answer.headers["x-request-id"]
    assert ids == [request_id, f"{request_id}-2"]
    (record,) = rig.gateway.plane.facts.take(10)
    assert (record["request_id"], record["attempts"], record["outcome"]) == (request_id, 2, "ok")


async def test_a_caller_may_forbid_the_second_try(rig: Rig) -> None:
    await serve_pair(rig, die_at=0)

    answer = await rig.ask(stream=True, headers={"x-sluice-no-retry": "1"})

    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert not rig.engines["r2"].completions


async def test_an_engine_that_answers_for_its_dead_core_loses_the_request_to_another(rig: Rig) -> None:
    await serve_pair(rig, dead_core=True)

    answer = await rig.ask()

    assert (answer.status, answer.headers["x-sluice-replica"]) == (200, "r2")
    assert rig.replica("r1").breaker.counts == {"dead_core": 1}


async def test_a_busy_engine_loses_the_request_to_another(rig: Rig) -> None:
    await serve_pair(rig, err=503)

    answer = await rig.ask()

    assert (answer.status, answer.headers["x-sluice-replica"]) == (200, "r2")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_busy_engine_without_another_one_speaks_for_itself(rig: Rig, stream: bool) -> None:
    await rig.serve(make_one(await rig.start_engine(err=503)))

    answer = await rig.ask(stream=stream)

    assert answer.status in (502, 503)


async def test_an_engines_own_error_is_not_repeated_elsewhere(rig: Rig) -> None:
    await serve_pair(rig, err=500)

    answer = await rig.ask()

    assert answer.status == 500
    assert not rig.engines["r2"].completions


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_accepted_and_is_slow_is_not_sent_again(rig: Rig, stream: bool) -> None:
    first, second = await rig.start_engine("r1", hang_after=0), await rig.start_engine("r2")
    await rig.serve(make_one(first, second, first_byte_timeout_s=0.2, total_timeout_s=0.4))
    make_busy(rig.replica("r2"))

    answer = await rig.ask(stream=stream)

    assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
    assert not rig.engines["r2"].completions


async def test_without_a_budget_only_what_reached_no_engine_is_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pool.domain.retries.FLOOR_PER_MIN", 0)
    await serve_pair(rig, model={"retry_ratio": 0.0}, die_at=0)

    lost = await rig.ask(stream=True)
    unreached = await rig.ask(stream=True)

    assert (lost.status, lost.error["code"]) == (502, "upstream_failed")
    assert unreached.headers["x-sluice-replica"] == "r2"


async def test_no_request_is_tried_at_more_than_three_replicas(rig: Rig) -> None:
    gone = [make_replica(name, f"unix:{rig.folder}/{name}.sock") for name in ("a", "b", "c", "d", "e")]
    await rig.serve(make_one(*gone))

    answer = await rig.ask()

    assert answer.status == 502
    tried = [one.id for one in rig.gateway.plane.routes.replicas if one.breaker.counts]
    assert len(tried) == 3
