"""FC-36: usage of streams is always known or marked as a guess, and nobody gets a usage event unasked."""

import json
from typing import Any

import pytest

from tests.fakes import answers
from tests.pool.gateway.rig import CHAT, Response, Rig, chat_request
from tests.pool.gateway.tables import make_one

PROMPT = "What is the capital of France?"
PROMPT_TOKENS = answers.count_tokens(PROMPT)
WORDS = 7
SHAPES = ("none", "null_each", "zero_each", "last", "last_no_choices", "always")
TELLING = ("last", "last_no_choices", "always")
"""Shapes that bring a true count in the end."""
ASKED = {"stream_options": {"include_usage": True}}
PATHS = (CHAT, "/v1/completions")


def read_record(rig: Rig) -> dict[str, Any]:
    (record,) = rig.gateway.plane.facts.take(10)
    return record


def list_usages(answer: Response) -> list[dict[str, int]]:
    events = [json.loads(event) for event in answer.events if event != "[DONE]"]
    return [event["usage"] for event in events if event.get("usage")]


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": PROMPT}]} if path == CHAT else {"prompt": PROMPT}
    return {"model": "m", **said, **fields}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", [True, False])
async def test_the_record_holds_the_engines_count_or_says_that_it_is_a_guess(
    rig: Rig, path: str, shape: str, asked: bool
) -> None:
    await rig.serve(make_one(await rig.start_engine(usage=shape)))

    answer = await rig.ask(body_for(path, stream=True, **(ASKED if asked else {})), path=path)

    assert answer.events[-1] == "[DONE]"
    record = read_record(rig)
    assert record["estimated"] is (shape not in TELLING)
    assert record["prompt_tokens"] > 0
    assert record["output_tokens"] >= WORDS
    if shape in TELLING:
        assert (record["prompt_tokens"], record["output_tokens"]) == (PROMPT_TOKENS, WORDS)


@pytest.mark.parametrize("shape", SHAPES)
async def test_who_asked_gets_the_engines_bytes(rig: Rig, shape: str) -> None:
    await rig.serve(make_one(await rig.start_engine(usage=shape)))

    answer = await rig.ask(stream=True, **ASKED)

    assert answer.body == bytes(rig.engines["r1"].completions[0].response)


@pytest.mark.parametrize("shape", SHAPES)
async def test_who_did_not_ask_gets_all_but_the_usage_event(rig: Rig, shape: str) -> None:
    await rig.serve(make_one(await rig.start_engine(usage=shape)))

    answer = await rig.ask(stream=True)

    said = bytes(rig.engines["r1"].completions[0].response).split(b"\n\n")
    assert answer.body.split(b"\n\n") == [event for event in said if b'"choices":[]' not in event]
    assert answer.text.split() == rig.engines["r1"].switches.text.split()


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, None])
async def test_other_ways_not_to_ask_are_asked_for_upstream_too(
    rig: Rig, options: dict[str, Any] | None
) -> None:
    await rig.serve(make_one(await rig.start_engine()))

    answer = await rig.ask(stream=True, stream_options=options)

    assert not list_usages(answer)
    assert json.loads(rig.engines["r1"].completions[0].body)["stream_options"]["include_usage"] is True
    assert read_record(rig)["output_tokens"] == WORDS


@pytest.mark.parametrize("cut", range(0, 1100, 37))
async def test_the_usage_event_is_taken_out_wherever_the_engine_cuts(rig: Rig, cut: int) -> None:
    await rig.serve(make_one(await rig.start_engine(text="a b", cut=(cut, cut + 1, cut + 20))))

    answer = await rig.ask(stream=True)

    assert not list_usages(answer)
    assert answer.text == "a b "
    assert (read_record(rig)["output_tokens"], answer.events[-1]) == (2, "[DONE]")


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_stream_that_is_left_counts_what_it_brought(rig: Rig, shape: str) -> None:
    await rig.serve(make_one(await rig.start_engine(usage=shape, gap_s=0.01, chunks=1000)))
    client = await rig.connect()
    client.send(chat_request(stream=True))
    await rig.until(lambda: client.raw.count(b"content") > 5 or rig.engines["r1"].tokens > 5)

    client.abort()
    await rig.until(lambda: not rig.gateway.plane.exchanges)

    record = read_record(rig)
    assert (record["outcome"], record["estimated"]) == ("client_gone", True)
    assert 3 <= record["output_tokens"] <= rig.engines["r1"].tokens + 2
    assert record["prompt_tokens"] > 0


@pytest.mark.parametrize("switches", [{"close_at": 4}, {"error_at": 4}, {"bad_json_at": 4}])
async def test_a_stream_that_was_cut_counts_what_it_brought(rig: Rig, switches: dict[str, Any]) -> None:
    await rig.serve(make_one(await rig.start_engine(**switches)))

    await rig.ask(stream=True)

    record = read_record(rig)
    assert (record["outcome"], record["estimated"]) == ("interrupted", True)
    assert 4 <= record["output_tokens"] <= 6
    assert record["prompt_tokens"] > 0


@pytest.mark.parametrize("shape", ["none", "last"])
async def test_a_plain_answer_tells_its_usage_or_is_guessed(rig: Rig, shape: str) -> None:
    await rig.serve(make_one(await rig.start_engine(usage=shape)))

    await rig.ask()

    record = read_record(rig)
    assert record["estimated"] is (shape == "none")
    assert record["prompt_tokens"] > 0
    assert record["output_tokens"] > 0


async def test_a_stream_counts_as_the_same_plain_answer(rig: Rig) -> None:
    await rig.serve(make_one(await rig.start_engine()))

    await rig.ask(max_tokens=5)
    plain = read_record(rig)
    await rig.ask(max_tokens=5, stream=True)
    stream = read_record(rig)

    for name in ("prompt_tokens", "output_tokens", "cached_tokens", "estimated"):
        assert plain[name] == stream[name]
