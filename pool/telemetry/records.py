"""Request records as rows of their table. No database here."""

from __future__ import annotations

from typing import Any, Final

from pool.models import RequestRecord
from pool.telemetry.rows import Row, dump_json

RECORD_COLUMNS: Final[tuple[str, ...]] = tuple(
    str(field.column) for field in RequestRecord._meta.concrete_fields
)
"""`request_id` and `at` are the first."""
_JSON: Final = frozenset({"tries", "waits", "flags"})
JSON_PLACES: Final = tuple(number for number, name in enumerate(RECORD_COLUMNS) if name in _JSON)


def row_of(record: RequestRecord) -> Row:
    return tuple(_value(name, getattr(record, name)) for name in RECORD_COLUMNS)


def _value(name: str, value: Any) -> Any:
    return dump_json(value) if name in _JSON else value
