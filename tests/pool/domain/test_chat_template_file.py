from __future__ import annotations

import json
from typing import Any

import pytest

from pool.domain.chat_template_file import bundle_templates, read_templates


def config(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_bundle_holds_template_and_tokens() -> None:
    bundle = bundle_templates({"tokenizer_config.json": config(chat_template="T", bos_token="<s>", a=1)})

    assert bundle is not None
    read = read_templates(bundle)
    assert (read.choose(has_tools=True), read.special_tokens) == ("T", {"bos_token": "<s>"})


def test_the_file_of_its_own_replaces_the_field() -> None:
    files = {"chat_template.jinja": b"new", "tokenizer_config.json": config(chat_template="old")}

    bundle = bundle_templates(files)

    assert bundle is not None
    assert read_templates(bundle).choose(has_tools=False) == "new"


def test_named_templates_are_chosen_by_tools() -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}, 5, {"name": "x"}]

    bundle = bundle_templates({"chat_template.json": config(chat_template=named)})

    assert bundle is not None
    read = read_templates(bundle)
    assert (read.choose(has_tools=False), read.choose(has_tools=True)) == ("D", "U")


def test_wrapped_tokens_are_unwrapped() -> None:
    bundle = bundle_templates(
        {
            "chat_template.jinja": b"T",
            "special_tokens_map.json": config(eos_token={"content": "</s>", "lstrip": False}, pad_token=None),
        }
    )

    assert bundle is not None
    assert read_templates(bundle).special_tokens == {"eos_token": "</s>"}


def test_equal_files_give_equal_bytes() -> None:
    first = {"chat_template.jinja": b"T", "tokenizer_config.json": config(bos_token="a", eos_token="b")}
    second = {"tokenizer_config.json": config(eos_token="b", bos_token="a"), "chat_template.jinja": b"T"}

    assert bundle_templates(first) == bundle_templates(second)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config.json": b"{"},
        {"tokenizer_config.json": b"[]"},
        {"tokenizer_config.json": config(bos_token="<s>")},
        {"tokenizer_config.json": config(chat_template=[{"name": "tool_use", "template": "U"}])},
    ],
)
def test_without_a_default_template_there_is_no_bundle(files: dict[str, bytes]) -> None:
    assert bundle_templates(files) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"templates":{},"special_tokens":{}}'])
def test_other_bytes_are_no_bundle(content: bytes) -> None:
    with pytest.raises(ValueError, match="no bundle"):
        read_templates(content)
