"""Streams of a release that is taken back end after so many more tokens, where an operator wants that."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pool.domain.routing_table import RoutingTable, from_bytes, to_bytes
from pool.gateway.early_end import build_end
from tests.pool.gateway.rig import SECRET, Connection, Rig, chat_request, make_release, make_table

CHUNKS = 400


async def start(rig: Rig, **more: Any) -> RoutingTable:
    """Release 2 has all traffic; its answers take some seconds."""
    table = make_table(
        make_release(1, await rig.start_engine("r1")),
        make_release(2, await rig.start_engine("r2", chunks=CHUNKS, gap_s=0.02)),
        weights={1: 0, 2: 100},
        **more,
    )
    await rig.serve(table)
    return table


def take_back(table: RoutingTable, *, version: int, endings: dict[int, int]) -> RoutingTable:
    (model,) = table.models
    assert model.plan is not None
    plan = replace(model.plan, number=version, weights={1: 100, 2: 0})
    return replace(table, version=version, models=(replace(model, plan=plan, endings=endings),))


async def open_stream(rig: Rig, **fields: Any) -> Connection:
    client = await rig.connect()
    client.send(chat_request(stream=True, max_tokens=CHUNKS, **fields))
    await client.read_until(b'"content"')
    return client


def choices_of(events: list[str]) -> list[dict[str, Any]]:
    found = [json.loads(event)["choices"] for event in events if event != "[DONE]"]
    return [choices[0] for choices in found if choices]


async def test_a_stream_of_a_release_that_is_taken_back_ends_as_one_cut_by_length(rig: Rig) -> None:
    table = await start(rig)
    client = await open_stream(rig)

    rig.apply(take_back(table, version=2, endings={2: 10}))
    answer = await client.read_response()

    assert answer.complete
    assert answer.events[-1] == "[DONE]"
    reasons = [one.get("finish_reason") for one in choices_of(answer.events)]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) == {None}
    assert 10 <= len(reasons) < CHUNKS


async def test_its_record_says_what_was_sent_and_that_it_is_a_count_of_the_gateway(rig: Rig) -> None:
    table = await start(rig)
    client = await open_stream(rig)

    rig.apply(take_back(table, version=2, endings={2: 5}))
    answer = await client.read_response()

    (fact,) = rig.gateway.plane.facts.take(10)
    assert (fact["outcome"], fact["finish_reason"], fact["flags"]) == ("ok", "length", ["cut_by_length"])
    assert fact["estimated"]
    # All events but the end that the gateway made, and [DONE].
    assert fact["output_tokens"] == len(answer.events) - 2
    await rig.until(lambda: not rig.replica("r2").in_flight)


async def test_figures_of_use_come_where_they_were_asked_for(rig: Rig) -> None:
    table = await start(rig)
    client = await open_stream(rig, stream_options={"include_usage": True})

    rig.apply(take_back(table, version=2, endings={2: 5}))
    answer = await client.read_response()

    last = json.loads(answer.events[-2])
    assert last["choices"] == []
    assert 0 < last["usage"]["completion_tokens"] < CHUNKS
    assert (
        last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    )


async def test_a_later_table_with_the_same_wish_gives_no_more_tokens(rig: Rig) -> None:
    table = await start(rig)
    client = await open_stream(rig)
    (exchange,) = rig.gateway.plane.exchanges
    assert exchange.answer is not None
    before = exchange.answer.chunks

    for version in range(2, 12):
        rig.apply(take_back(table, version=version, endings={2: 20}))
        await client.read_until(b'"content"')
    await client.read_response()

    (fact,) = rig.gateway.plane.facts.take(10)
    assert 20 <= fact["output_tokens"] - before < 26


async def test_other_releases_and_later_streams_are_left_alone(rig: Rig) -> None:
    first = await rig.start_engine("r1", chunks=30, gap_s=0.005)
    table = make_table(make_release(1, first), make_release(2, await rig.start_engine("r2")))
    await rig.serve(table)
    client = await open_stream(rig)

    rig.apply(take_back(table, version=2, endings={2: 0}))
    running = await client.read_response()
    rig.apply(take_back(table, version=3, endings={1: 0, 2: 0}))
    rig.apply(take_back(table, version=4, endings={1: 0, 2: 0}))
    later = await rig.ask(stream=True, max_tokens=30)

    assert [choices_of(one.events)[-1]["finish_reason"] for one in (running, later)] == ["stop", "stop"]


async def test_a_stream_whose_choices_are_several_goes_on_to_its_own_end(rig: Rig) -> None:
    table = make_table(
        make_release(1, await rig.start_engine("r1")),
        make_release(2, await rig.start_engine("r2", chunks=30, gap_s=0.005)),
        weights={1: 0, 2: 100},
    )
    await rig.serve(table)
    client = await open_stream(rig, n=2)

    rig.apply(take_back(table, version=2, endings={2: 0}))
    answer = await client.read_response()

    assert choices_of(answer.events)[-1]["finish_reason"] == "stop"


def test_the_wish_travels_with_the_table() -> None:
    table = take_back(make_table(make_release(1), make_release(2)), version=2, endings={2: 64})

    assert from_bytes(to_bytes(table, SECRET), SECRET).models[0].endings == {2: 64}


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"no event",
        b'{"choices":[]}',
        b'{"type":"response.output_text.delta","delta":"a"}',
        b'{"choices":[{"index":1,"delta":{"content":"a"},"finish_reason":null}]}',
        b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}',
        b"data: {broken\n\n",
        b"data: [1]\n\n",
    ],
)
def test_no_end_is_made_where_none_can_be_told(last: bytes) -> None:
    assert build_end(last, prompt_tokens=-1, output_tokens=3) == b""


def test_the_end_takes_over_the_names_of_its_stream() -> None:
    last = b'data: {"id":"c1","object":"text_completion","model":"m","choices":[{"index":0,"text":"a"}]}\n\n'

    end = build_end(last, prompt_tokens=7, output_tokens=3).split(b"\n\n")

    first, use = (json.loads(event.removeprefix(b"data: ")) for event in end[:2])
    assert first["id"] == use["id"] == "c1"
    assert first["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    assert use["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert end[2:] == [b"data: [DONE]", b""]
