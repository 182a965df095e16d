"""Typed reads from foreign JSON. What is wrong is named by file and field; the content is never echoed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pool.domain.errors import PoolError

MAX_JSON_BYTES = 32 * 2**20
"""Largest file read; an index of 10,000 shards has about 20 MB, a tokenizer_config.json 1 MB."""


class BadModelConfig(PoolError):
    code = "bad_model_config"


def parse_object(file: str, content: bytes) -> Mapping[str, Any]:
    if len(content) > MAX_JSON_BYTES:
        raise BadModelConfig(f"{file} is larger than {MAX_JSON_BYTES} bytes and is not read.", file=file)
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        raise BadModelConfig(f"{file} is not valid JSON. Fetch the model again.", file=file) from None
    if not isinstance(parsed, dict):
        raise BadModelConfig(f"{file} must hold a JSON object, not a {_kind(parsed)}.", file=file)
    return parsed


class ConfigFields:
    """One JSON object. `null` counts as absent, as it does for the engine."""

    def __init__(self, file: str, content: Mapping[str, Any]) -> None:
        self.file = file
        self._content = content

    def has(self, *names: str) -> bool:
        return any(self._content.get(name) is not None for name in names)

    def raw(self, name: str) -> Any:
        return self._content.get(name)

    def nested(self, name: str) -> ConfigFields | None:
        value = self._content.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return ConfigFields(self.file, value)

    def whole(self, *names: str, high: int) -> int:
        """The first of the names that is set: a whole number from 1 to `high`."""
        found = self.find_whole(*names, high=high)
        if found is None:
            raise BadModelConfig(f"{self.file} lacks {names[0]}.", file=self.file, field=names[0])
        return found

    def find_whole(self, *names: str, high: int) -> int | None:
        for name in names:
            value = self._content.get(name)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
                raise self._wrong(name, f"a whole number from 1 to {high}", value)
            return value
        return None

    def find_number(self, name: str) -> float | None:
        value = self._content.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
            raise self._wrong(name, "a number above 0", value)
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._content.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def word(self, *names: str) -> str:
        """The first of the names that is set, a short word; empty when none is."""
        for name in names:
            value = self._content.get(name)
            if value is None:
                continue
            if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
                raise self._wrong(name, "a short text", value)
            return value
        return ""

    def words(self, name: str) -> list[str]:
        value = self._content.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            isinstance(item, str) and len(item) <= 200 for item in value
        ):
            raise self._wrong(name, "a list of short texts", value)
        return value

    def _wrong(self, name: str, wanted: str, value: object) -> BadModelConfig:
        message = f"{self.file}: {name} must be {wanted}; it is {_kind(value)}."
        return BadModelConfig(message, file=self.file, field=name)


def _kind(value: object) -> str:
    match value:
        case bool():
            return "a truth value"
        case int() | float():
            return "a number outside that range"
        case str():
            return "a text"
        case list():
            return "a list"
        case None:
            return "null"
        case _:
            return "an object"
