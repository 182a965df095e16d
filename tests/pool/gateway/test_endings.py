"""The end of an answer, from bytes in vLLM's shapes."""

import json
from typing import Any

import pytest

from pool.gateway.endings import read_flags, read_reason, read_response_reason


def plain(text: str, *, reason: str = "stop", **message: Any) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": reason,
    }
    usage = {"prompt_tokens": 5, "total_tokens": 10, "completion_tokens": 5}
    return json.dumps({"id": "x", "choices": [choice], "usage": usage}, separators=(",", ":")).encode()


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def flags(last: bytes, *, tokens: int | None, reason: str = "stop", recent: Any = None) -> list[str]:
    return read_flags(reason=reason, output_tokens=tokens, last=last, recent=recent, is_whole=recent is None)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (plain("hello"), "stop"),
        (plain("hello", reason="length"), "length"),
        (event("", "tool_calls"), "tool_calls"),
        (event("a") + event("", "length"), "length"),
        (event("", "stop") + event("more"), "stop"),
        (event("a"), ""),
        (plain('"finish_reason":"length"'), "stop"),
        (b"", ""),
    ],
)
def test_the_reason_is_the_last_one_that_is_told(tail: bytes, reason: str) -> None:
    assert read_reason(tail) == reason


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b'{"status":"completed","usage":{}}', "stop"),
        (b'{"incomplete_details":{"reason":"max_output_tokens"},"status":"incomplete"}', "length"),
        (b'{"status":"failed"}', ""),
        (b"{}", ""),
    ],
)
def test_responses_tell_it_in_other_words(tail: bytes, reason: str) -> None:
    assert read_response_reason(tail) == reason


@pytest.mark.parametrize(
    ("last", "tokens", "found"),
    [
        (plain(""), 0, ["empty"]),
        (plain(""), 1, ["empty"]),
        (plain("4"), 1, []),
        (plain("", tool_calls=[{"id": "1"}]), 1, []),
        (plain("a longer one"), 4, []),
        (plain(""), None, []),
    ],
)
def test_an_answer_without_a_token_of_text_is_empty(
    last: bytes, tokens: int | None, found: list[str]
) -> None:
    assert flags(last, tokens=tokens) == found


def test_an_answer_that_ended_by_its_limit_is_cut() -> None:
    assert flags(plain("and then"), tokens=10, reason="length") == ["cut_by_length"]


@pytest.mark.parametrize("cut", [0, 1, 50])
def test_a_loop_is_found_in_the_tail_of_a_plain_answer(cut: int) -> None:
    body = plain('He said "no" again. ' * 100)

    assert flags(body[-1500 + cut :], tokens=500) == ["repeated"]
    assert flags(body[-1500 + cut :], tokens=20) == []


def test_a_loop_is_found_in_the_last_pieces_of_a_stream() -> None:
    words = ["He", "said", '"no"', "again."]
    pieces = [event(f" {word}") for word in words * 12]

    assert flags(pieces[-1], tokens=200, recent=pieces) == ["repeated"]
    assert flags(pieces[-1], tokens=200, recent=[b"".join(pieces)]) == ["repeated"]
    assert flags(pieces[-1], tokens=200, recent=[event(f" {n}") for n in range(48)]) == []
