"""The `openai` client against the gateway: answers, streams, and each refusal as its exception class."""

from dataclasses import replace
from typing import Any

import pytest

from pool.domain.routing_table import RoutingTable
from tests.openai_client import chat, make_calls, text_of
from tests.pool.gateway.rig import KEY, KEYS, NARROW_KEY, Rig, make_key, make_release, make_table
from tests.pool.gateway.tables import keep_alive, make_one

pytestmark = pytest.mark.engine

TEXT = "The capital of France is Paris . "


async def serve(rig: Rig, **switches: Any) -> RoutingTable:
    table = make_one(await rig.start_engine(**switches))
    await rig.serve(table)
    return table


async def test_it_lists_chats_streams_completes_and_embeds(rig: Rig) -> None:
    await serve(rig)

    listed, plain, stream, counted, completed, embedded = await make_calls(
        rig.gateway.port,
        KEY,
        {"method": "models.list"},
        chat(),
        chat(stream=True),
        chat(stream=True, stream_options={"include_usage": True}),
        {"method": "completions.create", "arguments": {"model": "m", "prompt": "Hi"}},
        {
            "method": "embeddings.create",
            "arguments": {"model": "m", "input": "Hi", "encoding_format": "float"},
        },
    )

    assert [model["id"] for model in listed["answer"]["data"]] == ["m"]
    assert plain["answer"]["choices"][0]["message"]["content"] == TEXT
    assert text_of(stream) == text_of(counted) == TEXT
    assert not any(event["usage"] for event in stream["events"])
    assert counted["events"][-1]["usage"] == plain["answer"]["usage"]
    assert completed["answer"]["choices"][0]["text"] == TEXT
    assert embedded["answer"]["data"][0]["embedding"] == [0.0, 1.0]


async def test_comments_during_a_long_prefill_are_not_seen(rig: Rig) -> None:
    table = keep_alive(make_one(await rig.start_engine(first_s=0.6)), 0.1)
    await rig.serve(table)

    (stream,) = await make_calls(rig.gateway.port, KEY, chat(stream=True))

    assert text_of(stream) == TEXT
    assert stream["events"][-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("kind", ["close_at", "error_at"])
async def test_a_stream_that_is_cut_raises_while_it_is_read(rig: Rig, kind: str) -> None:
    await serve(rig, **{kind: 3})

    (stream,) = await make_calls(rig.gateway.port, KEY, chat(stream=True))

    assert text_of(stream) == "The capital of "
    assert (stream["error"], stream["code"]) == ("APIError", "stream_interrupted")


async def test_each_refusal_has_its_exception_class(rig: Rig) -> None:
    await serve(rig, max_ctx=2000)

    told = await make_calls(
        rig.gateway.port,
        KEY,
        chat(temperature=99),
        chat(messages=[{"role": "user", "content": "long " * 60_000}]),
        chat(model="nobody"),
        chat(extra_headers={"x-sluice-release": "1"}),
        {**chat(), "options": {"api_key": "sk-wrong"}},
        {**chat(), "options": {"api_key": NARROW_KEY}},
        {
            "method": "responses.create",
            "arguments": {"model": "m", "input": "x", "previous_response_id": "y"},
        },
    )

    assert [(one["error"], one["status"], one["code"]) for one in told] == [
        ("BadRequestError", 400, "invalid_request"),
        ("BadRequestError", 400, "context_length_exceeded"),
        ("NotFoundError", 404, "model_not_found"),
        ("PermissionDeniedError", 403, "pin_not_allowed"),
        ("AuthenticationError", 401, "invalid_api_key"),
        ("PermissionDeniedError", 403, "model_not_allowed"),
        ("BadRequestError", 400, "invalid_request"),
    ]
    assert all(one["message"] and one["kind"] for one in told)


async def test_limits_and_engines_faults_have_theirs(rig: Rig) -> None:
    table = make_one(await rig.start_engine())
    narrow = make_key(KEY, requests_per_min=1)
    await rig.serve(replace(table, keys=(narrow, *KEYS[1:])))

    first, limited = await make_calls(rig.gateway.port, KEY, chat(), chat())
    rig.apply(make_table(make_release(1), version=2))
    (nobody,) = await make_calls(rig.gateway.port, KEY, chat())

    assert "error" not in first
    assert (limited["error"], limited["status"], limited["code"]) == ("RateLimitError", 429, "rate_limited")
    assert (nobody["error"], nobody["status"]) == ("InternalServerError", 503)
    assert nobody["code"] == "no_ready_replica"
