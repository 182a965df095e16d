import json
import re
import time
from typing import Any

import pytest

from pool.domain.structured_output import (
    OUTPUT_FORMS,
    UnsafeOutputForm,
    check_pattern,
    check_schema,
    check_tools,
    count_states,
)

PERSON = {
    "$defs": {
        "address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": r"^\d{5}$"}}}
    },
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 100, "default": {"type": 3}},
        "type": {"enum": ["a", 1, None]},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "address": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
        "pair": {"items": [{"type": "string"}, True], "additionalItems": False},
        "size": {"type": ["number", "null"], "minimum": 0},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def nest(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def refs(**definitions: str) -> dict[str, Any]:
    return {"$defs": {name: {"$ref": to} for name, to in definitions.items()}, "$ref": "#/$defs/a"}


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON), True, {}, nest(30)])
def test_sound_schemas_pass(schema: object) -> None:
    check_schema(schema, "guided_json")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not valid JSON"),
        ("[" * 5000, "not valid JSON"),
        (nest(40), "deeper than 32"),
        ({"enum": list(range(6000))}, "more than 3000 nodes"),
        ({"type": "str"}, "broken `type`"),
        ({"type": []}, "broken `type`"),
        ({"type": {"a": 1}}, "broken `type`"),
        ({"enum": []}, "broken `enum`"),
        ({"enum": "a"}, "broken `enum`"),
        ({"required": ["a", 1]}, "broken `required`"),
        ({"properties": ["a"]}, "no schema"),
        ({"properties": {"a": "string"}}, "no schema"),
        ({"anyOf": []}, "no schema"),
        ({"oneOf": {"type": "string"}}, "no schema"),
        ({"minItems": 10**9}, "broken `minItems`"),
        ({"maxLength": -1}, "broken `maxLength`"),
        ({"maxLength": "9"}, "broken `maxLength`"),
        ({"$ref": "http://169.254.169.254/latest"}, "outside of the schema"),
        ({"$ref": 5}, "outside of the schema"),
        ({"$ref": "#/$defs/none"}, "not there"),
        ({"$ref": "#"}, "for ever"),
        (refs(a="#/$defs/b", b="#/$defs/a"), "for ever"),
        ({"items": {"pattern": "(a"}}, "broken pattern"),
        ({"pattern": 5}, "no text"),
        ({"patternProperties": {"(a": {"type": "string"}}}, "broken pattern"),
        ({"prefixItems": [{"pattern": "a" * 2000}] * 9}, "over 8192 characters together"),
        ("text", "not valid JSON"),
        ([], "no schema"),
    ],
)
def test_what_could_harm_an_engine_is_refused(schema: object, reason: str) -> None:
    with pytest.raises(UnsafeOutputForm, match=re.escape(reason)) as refused:
        check_schema(schema, "guided_json")

    assert refused.value.details == {"param": "guided_json"}


@pytest.mark.parametrize(
    "pattern",
    [
        "", r"^\d{3}-\d{4}$", r"(yes|no|)", r"[^]a]+", r"(?:ab?)*?", r"\p{L}+\x{1F600}", r"a{2,}", r"x{}{,}",
        r"(?P<year>\d{4})(?=x)(?<!y)", r"(?i)abc", r"(?i:abc)", r"[\]]*", r"(a{10}){10}", r"a{0}",
    ],
)  # fmt: skip
def test_sound_patterns_pass(pattern: str) -> None:
    check_pattern(pattern, "guided_regex")


@pytest.mark.parametrize("pattern", ["(", "a)", ")(", "[a", "*a", "a|*", "{3}", "(+)", "a\\", "[", "(((a)"])
def test_broken_patterns_are_refused(pattern: str) -> None:
    assert count_states(pattern) is None
    with pytest.raises(UnsafeOutputForm, match="broken pattern"):
        check_pattern(pattern, "guided_regex")


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("a{1000}{1000}", 10**6),
        ("((a{100}b){100}){100}", 1_010_000),
        ("[a-z]{1,30000}", 30_000),
        ("(a|b{20001})", 20_002),
    ],
)
def test_patterns_that_unfold_are_refused(pattern: str, states: int) -> None:
    assert count_states(pattern) == states
    with pytest.raises(UnsafeOutputForm, match=f"{states} states"):
        check_pattern(pattern, "guided_regex")


def test_a_long_pattern_is_refused_unread() -> None:
    with pytest.raises(UnsafeOutputForm, match="4096 characters"):
        check_pattern("a" * 4096, "guided_regex")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "str"}}}),
        ("response_format", {"type": "json_schema", "schema": {"enum": []}}),
        ("response_format", {"type": "structural_tag", "structures": nest(40)}),
        ("text", {"format": {"type": "json_schema", "name": "p", "schema": {"type": "str"}}}),
        ("guided_json", "{"),
        ("guided_regex", "("),
        ("guided_choice", []),
        ("guided_choice", ["a", ""]),
        ("guided_choice", "ab"),
        ("guided_choice", ["a"] * 1025),
        ("guided_grammar", ""),
        ("guided_grammar", "x" * 40_000),
        ("guided_whitespace_pattern", "["),
        ("structured_outputs", {"regex": "("}),
        ("structured_outputs", {"json": {"type": "str"}}),
        ("structured_outputs", {"choice": [1]}),
        ("structural_tag", "{"),
        ("structural_tag", nest(40)),
    ],
)
def test_each_field_that_binds_an_answer_is_looked_at(field: str, value: object) -> None:
    with pytest.raises(UnsafeOutputForm) as refused:
        OUTPUT_FORMS[field](value, field)

    assert refused.value.details == {"param": field}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", "json"),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}),
        ("text", {"format": {"type": "text"}}),
        ("text", "plain"),
        ("guided_choice", ["yes", "no"]),
        ("guided_grammar", 'root ::= "a"'),
        ("structured_outputs", {"regex": "a+", "json": None}),
        ("structured_outputs", "a"),
        ("structural_tag", '{"triggers": ["<f"]}'),
    ],
)
def test_sound_fields_pass(field: str, value: object) -> None:
    OUTPUT_FORMS[field](value, field)


def test_tools_of_any_shape_are_taken() -> None:
    flat = {"type": "function", "name": "f", "parameters": PERSON}

    check_tools([flat, {"type": "function", "function": {"name": "g"}}, "odd", {"function": None}], "tools")
    check_tools("none", "tools")


@pytest.mark.parametrize(
    "pattern", ["(" * 1000 + ")" * 1000, "[a" * 1000, "a{1}" * 512, "\\" * 2047, "(?" * 1000]
)
def test_no_pattern_takes_long_to_look_at(pattern: str) -> None:
    started_s = time.thread_time()

    count_states(pattern)

    assert time.thread_time() - started_s < 0.1
