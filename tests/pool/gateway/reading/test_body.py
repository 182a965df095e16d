import json
from typing import Any

import pytest

from pool.domain.gateway_settings import ModelSettings
from pool.gateway.openai import InvalidRequest
from pool.gateway.reading.body import Reading, find_max_tokens, read_body
from pool.gateway.reading.prompt import Measures
from tests.pool.gateway.reading.conftest import chat_body

CHAT = b"/v1/chat/completions"


def reading_of(body: bytes, path: bytes = CHAT, **settings: Any) -> Reading:
    return read_body(path, body, settings={"m": ModelSettings(**settings)}, measures={})


def test_what_the_gateway_needs_is_read() -> None:
    body = chat_body(
        "hello",
        stream=True,
        stream_options={"include_usage": True},
        user="u1",
        max_tokens=7,
        temperature=0,
        n=2,
        seed=3,
        tools=[{"type": "function", "function": {"name": "f"}}],
    )

    reading = reading_of(body)

    assert (reading.model, reading.stream, reading.include_usage, reading.has_stream_options) == (
        "m",
        True,
        True,
        True,
    )
    assert (reading.user, reading.opening, reading.messages, reading.has_tools) == ("u1", "hello", 1, True)
    assert (reading.max_tokens, reading.temperature, reading.n, reading.seed) == (7, 0.0, 2, 3)
    assert reading.body is body


def test_what_is_absent_is_none_and_not_zero() -> None:
    reading = reading_of(chat_body("hello"))

    assert (reading.max_tokens, reading.temperature, reading.seed) == (None, None, None)
    assert (reading.n, reading.user, reading.stream, reading.include_usage) == (1, "", False, False)
    assert not reading.has_stream_options
    assert not reading.has_tools


def test_the_guards_of_the_model_are_asked() -> None:
    body = chat_body("a\x00b")

    reading = reading_of(body, control_characters="strip")

    assert reading.changed == ("control_characters",)
    assert json.loads(reading.body)["messages"][0]["content"] == "ab"
    with pytest.raises(InvalidRequest):
        reading_of(body, control_characters="refuse")


def test_a_model_that_no_table_names_is_only_read() -> None:
    body = chat_body("a\x00b", model="other")

    assert reading_of(body).body is body


def test_the_measures_of_the_model_are_used() -> None:
    body = chat_body("word " * 200)

    usual = reading_of(body).prompt_tokens
    doubled = read_body(CHAT, body, settings={}, measures={"m": Measures((0.6,) * 9)}).prompt_tokens

    assert doubled > 1.8 * usual


def test_equal_bodies_have_equal_digests() -> None:
    assert reading_of(chat_body("a")).digest == reading_of(chat_body("a")).digest
    assert reading_of(chat_body("a")).digest != reading_of(chat_body("b")).digest


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"model":5}', b'{"model":"m","x":"\xff"}'])
def test_a_body_of_no_use_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        reading_of(body)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_output_tokens": 8}, 8),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": "9"}, None),
        ({"max_tokens": 0}, 0),
    ],
)
def test_the_newest_name_of_the_limit_wins(fields: dict[str, Any], expected: int | None) -> None:
    assert find_max_tokens(fields) == expected
