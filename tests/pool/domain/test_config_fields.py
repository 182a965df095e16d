from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.config_fields import MAX_JSON_BYTES, BadModelConfig, ConfigFields, parse_object


def fields_of(**content: Any) -> ConfigFields:
    return ConfigFields("config.json", content)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe\x00", b"[" * 200_000, b" " * (MAX_JSON_BYTES + 1), b"null"]
)
def test_what_is_no_json_object_is_refused_by_file_name(content: bytes) -> None:
    with pytest.raises(BadModelConfig, match=r"config\.json"):
        parse_object("config.json", content)


def test_numbers_beyond_any_model_are_refused() -> None:
    with pytest.raises(BadModelConfig, match="layers must be a whole number from 1 to 100; it is a number"):
        fields_of(layers=10**30).whole("layers", high=100)


@pytest.mark.parametrize("value", [0, -1, True, "12", 1.5, [1], {"a": 1}, float("inf")])
def test_wrong_types_are_refused_by_field_name(value: object) -> None:
    with pytest.raises(BadModelConfig) as caught:
        fields_of(layers=value).find_whole("layers", high=100)

    assert caught.value.details == {"file": "config.json", "field": "layers"}


def test_whole_numbers_written_as_floats_are_taken() -> None:
    assert fields_of(layers=12.0).whole("layers", high=100) == 12


def test_the_first_name_that_is_set_counts() -> None:
    assert fields_of(n_layer=3, layers=None).whole("layers", "n_layer", high=9) == 3


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BadModelConfig, match=r"config\.json lacks layers"):
        fields_of().whole("layers", high=9)


def test_fc51_the_content_is_never_echoed() -> None:
    with pytest.raises(BadModelConfig) as caught:
        fields_of(model_type="root:x:0:0:\n").word("model_type")

    assert "root" not in caught.value.message


@pytest.mark.parametrize(
    ("method", "good", "bad"),
    [
        ("flag", True, "yes"),
        ("find_number", 2, "2"),
        ("find_number", 0.5, -1),
        ("word", "llama", 3),
        ("words", ["a"], "a"),
        ("words", ["a"], [1]),
    ],
)
def test_each_read_checks_its_type(method: str, good: object, bad: object) -> None:
    assert getattr(fields_of(field=good), method)("field") == good
    with pytest.raises(BadModelConfig):
        getattr(fields_of(field=bad), method)("field")


def test_absent_fields_have_plain_answers() -> None:
    empty = fields_of()

    assert empty.flag("a", default=True)
    assert (empty.word("a"), empty.words("a"), empty.find_number("a"), empty.nested("a")) == (
        "",
        [],
        None,
        None,
    )
    assert not empty.has("a")
    assert empty.raw("a") is None


def test_a_nested_object_keeps_the_file_name() -> None:
    nested = fields_of(text_config={"layers": "many"}).nested("text_config")
    assert nested is not None

    with pytest.raises(BadModelConfig, match=r"config\.json: layers"):
        nested.whole("layers", high=9)


def test_a_nested_object_of_another_type_is_refused() -> None:
    with pytest.raises(BadModelConfig, match="must be an object; it is a list"):
        fields_of(text_config=[1]).nested("text_config")


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner)))
def test_any_value_is_read_or_refused(value: object) -> None:
    for method in ("flag", "find_number", "word", "words", "nested"):
        with contextlib.suppress(BadModelConfig):
            getattr(fields_of(field=value), method)("field")
