"""The answer cache and shared answers over real sockets: hit, miss, coalescing, and whose answer it is."""

import asyncio
from typing import Any

import pytest

from pool.domain.gateway_settings import ModelSettings
from tests.pool.gateway.rig import (
    PIN_KEY,
    Connection,
    Response,
    Rig,
    chat_body,
    chat_request,
    make_release,
    make_table,
)

KEPT: dict[str, Any] = {"cache_s": 60.0}
SHARED: dict[str, Any] = {"coalesce": True}


async def serve(rig: Rig, settings: dict[str, Any], **switches: Any) -> None:
    replica = await rig.start_engine(**switches)
    await rig.serve(make_table(make_release(1, replica), settings=ModelSettings(**settings)))


def count_calls(rig: Rig, name: str = "r1") -> int:
    return len(rig.engines[name].completions)


async def ask_sure(rig: Rig, **more: Any) -> Response:
    return await rig.ask(chat_body(temperature=0, **more.pop("fields", {})), **more)


async def send_equal(rig: Rig, count: int, **fields: Any) -> list[Connection]:
    """All of them are on their way when this returns, the first one first."""
    clients = []
    for _ in range(count):
        client = await rig.connect()
        client.send(chat_request(temperature=0, **fields))
        clients.append(client)
        await rig.until(lambda: len(rig.gateway.plane.exchanges) == len(clients))
    return clients


# Kept answers.
async def test_an_equal_request_gets_the_kept_answer_byte_for_byte(rig: Rig) -> None:
    await serve(rig, KEPT)

    first, second = await ask_sure(rig), await ask_sure(rig)

    assert [first.headers["x-sluice-cache"], second.headers["x-sluice-cache"]] == ["miss", "hit"]
    assert second.body == first.body
    assert second.headers["content-type"] == first.headers["content-type"]
    assert second.headers["x-sluice-release"] == "1"
    assert second.headers["x-request-id"] != first.headers["x-request-id"]
    assert count_calls(rig) == 1


async def test_the_order_of_fields_makes_no_other_request(rig: Rig) -> None:
    await serve(rig, KEPT)
    body = chat_body(temperature=0, seed=1)

    await rig.ask(body)
    answer = await rig.ask(dict(reversed(body.items())))

    assert answer.headers["x-sluice-cache"] == "hit"


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.5}, {"temperature": None}, {"temperature": 0, "tools": [{"type": "function"}]}],
)
async def test_what_may_differ_each_time_is_not_kept(rig: Rig, fields: dict[str, Any]) -> None:
    await serve(rig, KEPT)

    answers = [await rig.ask(**fields) for _ in range(2)]

    assert not any("x-sluice-cache" in answer.headers for answer in answers)
    assert count_calls(rig) == 2


async def test_streams_are_not_kept(rig: Rig) -> None:
    await serve(rig, {**KEPT, **SHARED})

    for _ in range(2):
        answer = await rig.ask(stream=True, temperature=0)
        assert answer.events[-1] == "[DONE]"

    assert count_calls(rig) == 2


async def test_another_caller_never_gets_it(rig: Rig) -> None:
    await serve(rig, KEPT)

    await ask_sure(rig)
    answer = await ask_sure(rig, key=PIN_KEY)

    assert answer.headers["x-sluice-cache"] == "miss"
    assert count_calls(rig) == 2


async def test_another_release_never_gets_it(rig: Rig) -> None:
    first, second = await rig.start_engine("r1"), await rig.start_engine("r2", text="Lyon ?")
    await rig.serve(
        make_table(
            make_release(1, first), make_release(2, second), weights={1: 100, 2: 0},
            settings=ModelSettings(**KEPT),
        )
    )  # fmt: skip

    await ask_sure(rig, key=PIN_KEY)
    answer = await ask_sure(rig, key=PIN_KEY, headers={"x-sluice-release": "2"})

    assert answer.headers["x-sluice-cache"] == "miss"
    assert b"Lyon" in answer.body


@pytest.mark.parametrize("status", [400, 500])
async def test_a_failure_is_not_kept(rig: Rig, status: int) -> None:
    await serve(rig, KEPT, err=status)
    await ask_sure(rig)
    rig.engines["r1"].switches.err = None

    answer = await ask_sure(rig)

    assert (answer.status, answer.headers["x-sluice-cache"]) == (200, "miss")


async def test_an_old_answer_is_asked_for_again(rig: Rig) -> None:
    await serve(rig, {"cache_s": 0.05})
    await ask_sure(rig)
    await asyncio.sleep(0.1)

    assert (await ask_sure(rig)).headers["x-sluice-cache"] == "miss"
    assert count_calls(rig) == 2


async def test_a_hit_costs_no_tokens_and_says_so_in_its_record(rig: Rig) -> None:
    await serve(rig, KEPT)
    await ask_sure(rig)
    await ask_sure(rig)

    missed, hit = rig.gateway.plane.facts.take(10)

    assert missed["output_tokens"] > 0
    assert (hit["outcome"], hit["status"], hit["replica"], hit["release"]) == ("ok", 200, None, None)
    assert (hit["prompt_tokens"], hit["output_tokens"], hit["estimated"]) == (None, None, False)
    tally = rig.gateway.plane.answers.describe()["models"]["m"]
    assert (tally["hits"], tally["misses"], tally["hit_ratio"]) == (1, 1, 0.5)


async def test_a_hit_needs_no_engine(rig: Rig) -> None:
    await serve(rig, KEPT)
    await ask_sure(rig)
    await rig.engines["r1"].stop()

    assert (await ask_sure(rig)).status == 200


# Shared answers.
async def test_equal_requests_at_the_same_time_cost_one_answer(rig: Rig) -> None:
    await serve(rig, SHARED, gap_s=0.05)

    clients = await send_equal(rig, 8)
    answers = [await client.read_response() for client in clients]

    assert count_calls(rig) == 1
    assert len({answer.body for answer in answers}) == 1
    assert [answer.headers["x-sluice-cache"] for answer in answers] == ["miss", *["hit"] * 7]


async def test_without_the_switch_each_has_its_own(rig: Rig) -> None:
    await serve(rig, {}, gap_s=0.02)

    clients = await send_equal(rig, 3)
    for client in clients:
        await client.read_response()

    assert count_calls(rig) == 3


async def test_each_goes_on_its_own_when_the_leader_fails(rig: Rig) -> None:
    await serve(rig, SHARED, err=500, err_s=0.3)

    clients = await send_equal(rig, 4)
    await rig.until(lambda: count_calls(rig))
    rig.engines["r1"].switches.err = None
    answers = [await client.read_response() for client in clients]

    assert [answer.status for answer in answers] == [500, 200, 200, 200]
    assert count_calls(rig) == 4


async def test_the_next_leads_when_the_leaders_client_goes(rig: Rig) -> None:
    await serve(rig, SHARED, gap_s=0.1)

    clients = await send_equal(rig, 4)
    await rig.until(lambda: count_calls(rig))
    clients[0].abort()
    answers = [await client.read_response() for client in clients[1:]]

    assert {answer.status for answer in answers} == {200}
    assert count_calls(rig) == 2
    assert rig.engines["r1"].completions[0].aborted


async def test_a_follower_that_goes_disturbs_nobody(rig: Rig) -> None:
    await serve(rig, SHARED, gap_s=0.05)

    clients = await send_equal(rig, 4)
    await rig.until(lambda: count_calls(rig))
    clients[2].abort()
    answers = [await clients[number].read_response() for number in (0, 1, 3)]

    assert {answer.status for answer in answers} == {200}
    assert count_calls(rig) == 1
    await rig.until(lambda: not rig.gateway.plane.exchanges)


async def test_a_followers_wait_in_the_queue_begins_when_it_goes_on(rig: Rig) -> None:
    replica = await rig.start_engine(err=500, err_s=0.6)
    lane = {"queue_timeout_s": 0.3, "concurrency": 1, "adaptive": False}
    await rig.serve(make_table(make_release(1, replica), settings=ModelSettings(**SHARED), lane=lane))

    clients = await send_equal(rig, 3)
    await rig.until(lambda: count_calls(rig))
    rig.engines["r1"].switches.err = None
    answers = [await client.read_response() for client in clients]

    assert [answer.status for answer in answers] == [500, 200, 200]


async def test_nothing_is_left_of_shared_answers(rig: Rig) -> None:
    await serve(rig, {**SHARED, **KEPT}, gap_s=0.02)

    clients = await send_equal(rig, 6)
    for number, client in enumerate(clients):
        if number % 2:
            client.abort()
        else:
            await client.read_response()

    await rig.until(lambda: not rig.gateway.plane.exchanges)
    assert rig.replica().in_flight == 0
    assert not rig.gateway.plane.answers._places  # noqa: SLF001
    assert not rig.gateway.plane.answers._flights  # noqa: SLF001
