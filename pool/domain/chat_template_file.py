"""A model's chat templates with the special tokens that they name, as one file under one hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SOURCES = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.json", "chat_template.jinja")
"""Files of a model's folder that may hold a part; a later one replaces what an earlier one says."""

DEFAULT = "default"
LARGEST_FILE_BYTES = 32 * 2**20
"""Of a tokenizer.json or a bundle: of public models the largest, for 262,144 tokens, are about as large."""


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    templates: dict[str, str]
    """By name; `default`, and by habit `tool_use` for requests with tools."""
    special_tokens: dict[str, str]
    """`bos_token`, `eos_token`, …"""

    def choose(self, *, has_tools: bool) -> str:
        if has_tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        return self.templates[DEFAULT]


def bundle_templates(files: Mapping[str, bytes]) -> bytes | None:
    """Of those of SOURCES that the folder has; None if they hold no default template. Equal input, equal bytes."""
    templates: dict[str, str] = {}
    tokens: dict[str, str] = {}
    for name in SOURCES:
        if name not in files:
            continue
        if name.endswith(".jinja"):
            templates[DEFAULT] = files[name].decode("utf-8", "replace")
            continue
        fields = _parse(files[name])
        templates |= _templates_of(fields.get("chat_template"))
        tokens |= _tokens_of(fields)
    if DEFAULT not in templates:
        return None
    shape = {"templates": templates, "special_tokens": tokens}
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def read_templates(content: bytes) -> ChatTemplates:
    """Raises ValueError for bytes that `bundle_templates` did not make."""
    fields = _parse(content)
    templates, tokens = fields.get("templates"), fields.get("special_tokens")
    if not isinstance(templates, dict) or not isinstance(tokens, dict) or DEFAULT not in templates:
        raise ValueError("no bundle of chat templates")
    return ChatTemplates(templates, tokens)


def _parse(content: bytes) -> dict[str, Any]:
    """An unreadable file is as good as none: what it should have held is missing then."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _templates_of(given: object) -> dict[str, str]:
    if isinstance(given, str):
        return {DEFAULT: given}
    if not isinstance(given, list):
        return {}
    named = [(one.get("name"), one.get("template")) for one in given if isinstance(one, dict)]
    return {name: text for name, text in named if isinstance(name, str) and isinstance(text, str)}


def _tokens_of(fields: dict[str, Any]) -> dict[str, str]:
    """Older files wrap a token in an object with its flags."""
    tokens = {}
    for name, value in fields.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
