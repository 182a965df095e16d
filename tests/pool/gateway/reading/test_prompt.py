import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.gateway.reading.prompt import (
    USUAL,
    Measures,
    Prompt,
    block_hashes,
    estimate_prompt,
    measures_of,
    read_prompt,
)

TEXT = string.ascii_letters * 100


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Prompt("", 0, 0, 0)),
        ({"prompt": "hello"}, Prompt("hello", 1, 0, 0)),
        ({"input": "hello"}, Prompt("hello", 1, 0, 0)),
        ({"prompt": 5}, Prompt("", 0, 0, 0)),
        ({"prompt": ["a", "b"]}, Prompt("a\nb", 0, 0, 0)),
        ({"prompt": [1, 2, 3]}, Prompt("", 0, 3, 0)),
        ({"prompt": [[1, 2], [3]]}, Prompt("", 0, 3, 0)),
        ({"prompt": []}, Prompt("", 0, 0, 0)),
        ({"messages": [{"role": "user", "content": "hi"}]}, Prompt("user\nhi", 1, 0, 0)),
        ({"messages": [5, {"role": 1, "content": 2}]}, Prompt("", 2, 0, 0)),
        ({"messages": [{"content": ["a", {"text": "b"}, {"type": "image_url"}]}]}, Prompt("a\nb", 1, 0, 1)),
        (
            {"instructions": "be kind", "input": [{"role": "user", "content": "hi"}]},
            Prompt("be kind\nuser\nhi", 1, 0, 0),
        ),
    ],
)
def test_any_shape_of_prompt_is_read(fields: dict[str, Any], expected: Prompt) -> None:
    assert read_prompt(fields) == expected


def test_tools_come_first_and_calls_count() -> None:
    tools, calls = [{"type": "function"}], [{"id": "c1"}]

    prompt = read_prompt({"tools": tools, "messages": [{"role": "assistant", "tool_calls": calls}]})

    assert prompt.text == '[{"type":"function"}]\nassistant\n[{"id":"c1"}]'


def test_a_guess_counts_all_that_a_prompt_holds() -> None:
    plain = estimate_prompt(Prompt("hello", 0, 0, 0))

    assert plain == 2
    assert estimate_prompt(Prompt("hello", 2, 0, 0)) == plain + 14
    assert estimate_prompt(Prompt("hello", 0, 100, 0)) == plain + 100
    assert estimate_prompt(Prompt("hello", 0, 0, 2)) == plain + 1024


def test_measures_survive_json() -> None:
    measures = Measures((0.5,) * 9, 3.0, 7.0)

    assert measures_of([list(measures.weights), 3.0, 7.0]) == measures
    assert measures_of(list(USUAL)) == USUAL


def test_a_common_beginning_gives_common_hashes() -> None:
    first, second = block_hashes(TEXT[:2000] + "x" * 600), block_hashes(TEXT[:2000] + "y" * 600)

    assert first[:3] == second[:3]
    assert first[3:] != second[3:]
    assert len(first) == 5


def test_a_block_stands_for_all_before_it() -> None:
    block = "b" * 512

    assert block_hashes("a" * 512 + block)[1] != block_hashes("c" * 512 + block)[1]
    assert len(set(block_hashes(block * 4))) == 4


def test_only_whole_blocks_have_a_hash_and_only_so_many() -> None:
    assert block_hashes("a" * 511) == ()
    assert len(block_hashes("a" * 512)) == 1
    assert len(block_hashes("a" * 51_200, limit=7)) == 7
    assert len(block_hashes("a" * 64, block_chars=16)) == 4


def test_hashes_are_the_same_in_every_process() -> None:
    assert block_hashes("a" * 512) == (6316316909524131681,)


@given(st.text(max_size=2000))
def test_hashes_are_of_64_bits(text: str) -> None:
    assert all(0 <= one < 2**64 for one in block_hashes(text, block_chars=100))
