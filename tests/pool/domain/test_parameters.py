from typing import Any

import pytest

from pool.domain.parameters import AbsurdParameter, check_parameters
from pool.domain.structured_output import UnsafeOutputForm


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "max_tokens": 64, "temperature": 0.7, "top_p": 1, "stream": True, "model": "m"},
        {"n": None, "temperature": None, "stop": None, "logprobs": True, "logit_bias": None, "tools": None},
        {"stop": "END"},
        {"stop": ["a", "b"], "stop_token_ids": [1, 2], "bad_words": ["x"], "logit_bias": {"50256": -100}},
        {"temperature": "0.7", "n": "warm", "max_tokens": [1], "top_k": -1, "n_best": 10**9},
        {"stop": 3, "logit_bias": [1], "stop_token_ids": ["a"], "tools": "none"},
        {"tools": [{"function": {"parameters": {"type": "any", "$ref": "http://x"}}}], "tool_choice": "auto"},
        {"tools": [{"function": {"parameters": {"type": "object"}}}], "tool_choice": "required"},
        {"seed": -(2**63), "truncate_prompt_tokens": -1, "presence_penalty": -2.0},
    ],
)
def test_reasonable_or_mistyped_ones_go_to_the_engine_as_they_are(fields: dict[str, Any]) -> None:
    before = repr(fields)

    assert check_parameters(fields, clamp=False) == ()
    assert repr(fields) == before


@pytest.mark.parametrize(
    ("name", "value", "clamped"),
    [
        ("n", 0, 1),
        ("n", 1_000_000, 128),
        ("n", "1000000", 128),
        ("best_of", 999, 128),
        ("max_tokens", -1, 0),
        ("max_completion_tokens", 10**12, 10_000_000),
        ("temperature", -0.1, 0),
        ("temperature", 1e308, 10),
        ("top_p", 1.5, 1),
        ("top_k", -7, -1),
        ("logprobs", -1, 0),
        ("top_logprobs", 5000, 20),
        ("prompt_logprobs", 151_936, 20),
        ("repetition_penalty", 0, 0.01),
        ("seed", 2.0**80, 2**63 - 1),
        ("stop", ["x"] * 17, ["x"] * 16),
        ("stop", ["a", "", "y" * 257, 5], ["a", 5]),
        ("stop", "", None),
        ("bad_words", ["z"] * 129, ["z"] * 128),
        ("stop_token_ids", [1] * 200, [1] * 128),
        ("logit_bias", {"1": 5, "2": 1e9}, {"1": 5, "2": 100}),
    ],
)
def test_absurd_ones_are_refused_or_brought_into_their_bounds(name: str, value: Any, clamped: Any) -> None:
    with pytest.raises(AbsurdParameter) as refused:
        check_parameters({name: value}, clamp=False)
    fields = {"model": "m", name: value}

    assert check_parameters(fields, clamp=True) == (name,)
    assert fields == {"model": "m", name: clamped}
    assert refused.value.details == {"param": name}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "nan"),
        ("stop_token_ids", [-1]),
        ("allowed_token_ids", [2**40]),
        ("logit_bias", dict.fromkeys(map(str, range(1025)), 1)),
        ("tools", [{}] * 257),
    ],
)
@pytest.mark.parametrize("clamp", [False, True])
def test_some_have_no_bound_to_be_brought_to(name: str, value: Any, clamp: bool) -> None:
    with pytest.raises(AbsurdParameter, match=name):
        check_parameters({name: value}, clamp=clamp)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_schemas_of_tools_count_when_the_answer_must_call_one(choice: object) -> None:
    broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "str"}}}

    with pytest.raises(UnsafeOutputForm):
        check_parameters({"tools": [broken], "tool_choice": choice}, clamp=True)


def test_schemas_are_never_clamped() -> None:
    with pytest.raises(UnsafeOutputForm):
        check_parameters({"guided_regex": "(("}, clamp=True)
