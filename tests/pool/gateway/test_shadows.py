"""Shadow requests over real sockets: idle slots only, answers dropped, cost shown, nothing told to anybody."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pool.gateway.state import describe_plane
from tests.fakes import answers
from tests.pool.gateway.rig import Rig, chat_request, make_release, make_table
from tests.pool.gateway.tables import engine_process, wait_for_socket

ALL: dict[str, Any] = {"release": 2, "percent": 100}


async def serve(
    rig: Rig, shadow: dict[str, Any] | None = None, *, slots: int | None = None, **switches: Any
) -> None:
    """Release 1 answers; release 2 has no weight."""
    stable = await rig.start_engine("r1")
    candidate = replace(await rig.start_engine("r2", **switches), slots=slots)
    await rig.serve(
        make_table(
            make_release(1, stable), make_release(2, candidate), weights={1: 100, 2: 0},
            shadow=ALL if shadow is None else shadow,
        )
    )  # fmt: skip


def count_shadows(rig: Rig) -> int:
    return len(rig.engines["r2"].completions)


async def settle(rig: Rig) -> None:
    await rig.until(lambda: not rig.gateway.plane.shadows and not rig.gateway.plane.exchanges)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_shadow_gets_the_same_request_and_its_answer_is_dropped(rig: Rig, stream: bool) -> None:
    await serve(rig, text="something else")

    answer = await rig.ask(stream=stream)
    await settle(rig)

    assert answer.headers["x-sluice-release"] == "1"
    assert b"something" not in answer.body
    (call,), (shadow,) = rig.engines["r1"].completions, rig.engines["r2"].completions
    assert shadow.body == call.body
    assert shadow.headers["x-request-id"] == f"{call.headers['x-request-id']}-shadow"


async def test_its_cost_is_shown(rig: Rig) -> None:
    await serve(rig, text="one two three")

    await rig.ask(stream=True)
    await rig.ask()
    await settle(rig)

    tokens = 2 * (answers.count_tokens("What is the capital of France?") + 3)
    described = describe_plane(rig.gateway.plane, 0.0)["models"]["m"]["shadow"]
    assert described == {"requests": 2, "tokens": tokens}
    page = (await rig.get("/metrics")).body.decode()
    assert f'sluice_shadow_tokens_total{{model="m",release="2"}} {tokens}' in page
    assert 'outcome="ok"' in page


async def test_it_is_no_request_of_a_caller(rig: Rig) -> None:
    await serve(rig)

    await rig.ask()
    await settle(rig)

    (record,) = rig.gateway.plane.facts.take(10)
    assert record["release"] == 1
    page = (await rig.get("/metrics")).body.decode()
    assert not [
        line for line in page.splitlines() if "sluice_requests_total" in line and 'release="2"' in line
    ]


async def test_it_takes_no_slot_that_is_not_idle(rig: Rig) -> None:
    await serve(rig, slots=2, gap_s=0.05, chunks=40)

    for _ in range(6):
        assert (await rig.ask()).status == 200

    # Of two slots one is the reserve.
    assert 1 <= count_shadows(rig) <= 2


async def test_a_caller_never_waits_behind_a_shadow_of_the_same_engine(rig: Rig) -> None:
    """Release 2 serves a half, and shadows the other."""
    stable = await rig.start_engine("r1")
    candidate = replace(await rig.start_engine("r2", gap_s=0.02, chunks=30), slots=4)
    await rig.serve(
        make_table(
            make_release(1, stable), make_release(2, candidate), weights={1: 50, 2: 50}, shadow=ALL,
        )
    )  # fmt: skip

    clients = [await rig.connect() for _ in range(12)]
    for number, client in enumerate(clients):
        client.send(chat_request(stream=True, headers={"x-sluice-session": f"s{number}"}))
    answers_ = [await client.read_response() for client in clients]

    assert {answer.status for answer in answers_} == {200}
    await settle(rig)
    assert rig.replica("r2").in_flight == 0


async def test_while_somebody_waits_no_shadow_goes_out(rig: Rig) -> None:
    await serve(rig, gap_s=0.05, chunks=20)
    gate = rig.gateway.plane.routes.models["m"].gates[2]
    gate.waiting += 1

    await rig.ask()

    gate.waiting -= 1
    assert count_shadows(rig) == 0


@pytest.mark.parametrize(("percent", "least", "most"), [(0, 0, 0), (30, 20, 70), (100, 140, 150)])
async def test_its_share_is_the_plans(rig: Rig, percent: int, least: int, most: int) -> None:
    await serve(rig, {"release": 2, "percent": percent})
    client = await rig.connect()

    for _ in range(150):
        client.send(chat_request(max_tokens=1))
        await client.read_response()
        await rig.until(lambda: not rig.gateway.plane.shadows)

    assert least <= count_shadows(rig) <= most


@pytest.mark.parametrize("wish", [{}, {"release": 7}, {"release": "2"}, {"release": 1}])
async def test_a_shadow_of_nothing_is_none(rig: Rig, wish: dict[str, Any]) -> None:
    await serve(rig, wish)

    assert (await rig.ask()).status == 200
    assert count_shadows(rig) == 0


@pytest.mark.parametrize("switches", [{"err": 500}, {"close_at": 2}, {"bad_json_at": 1}, {"err": 400}])
async def test_a_failing_shadow_is_not_noticed(rig: Rig, switches: dict[str, Any]) -> None:
    await serve(rig, **switches)

    for _ in range(4):
        answer = await rig.ask(stream=True)
        assert answer.events[-1] == "[DONE]"
    await settle(rig)

    assert rig.replica("r2").in_flight == 0
    assert rig.replica("r1").breaker.closed


async def test_an_engine_that_dies_of_a_shadow_puts_nobody_into_quarantine(rig: Rig) -> None:
    stable = await rig.start_engine("r1")
    with engine_process(rig.folder, "r2", "poison=BOOM") as (candidate, _):
        await wait_for_socket(candidate)
        await rig.serve(
            make_table(
                make_release(1, stable), make_release(2, candidate), weights={1: 100, 2: 0}, shadow=ALL
            )
        )

        first = await rig.ask(messages=[{"role": "user", "content": "BOOM"}])
        await settle(rig)
        second = await rig.ask(messages=[{"role": "user", "content": "BOOM"}])

    assert (first.status, second.status) == (200, 200)
    assert not rig.replica("r2").breaker.closed


async def test_a_shadow_outlives_its_client(rig: Rig) -> None:
    await serve(rig, gap_s=0.01, chunks=20)
    client = await rig.connect()
    client.send(chat_request(stream=True))
    await rig.until(lambda: count_shadows(rig))

    client.abort()
    await settle(rig)

    assert not rig.engines["r2"].completions[0].aborted


async def test_a_shadow_that_never_ends_is_ended(rig: Rig) -> None:
    stable = await rig.start_engine("r1")
    candidate = await rig.start_engine("r2", stall_at=1)
    await rig.serve(
        make_table(
            make_release(1, stable), make_release(2, candidate), weights={1: 100, 2: 0}, shadow=ALL,
            lane={"total_timeout_s": 0.2},
        )
    )  # fmt: skip

    await rig.ask(stream=True)
    await settle(rig)

    assert rig.replica("r2").in_flight == 0
    await rig.until(lambda: rig.engines["r2"].completions[0].aborted)


async def test_a_retry_makes_no_second_shadow(rig: Rig) -> None:
    broken, well = await rig.start_engine("r1", die_at=0), await rig.start_engine("r3")
    candidate = await rig.start_engine("r2")
    await rig.serve(
        make_table(
            make_release(1, broken, well), make_release(2, candidate), weights={1: 100, 2: 0}, shadow=ALL
        )
    )
    rig.replica("r3").in_flight = 1
    rig.replica("r3").in_flight_tokens = 1_000_000

    answer = await rig.ask()
    await settle(rig)

    assert (answer.status, json.loads(answer.body)["choices"][0]["finish_reason"]) == (200, "stop")
    assert count_shadows(rig) == 1
