"""Many rows into one table at once: COPY into a table of the session, then one upsert.

512 rows cost 2.5 ms of this process' CPU; as single upserts (psycopg's executemany) 15 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db import connection
from django.db.models import Model

_TYPES = {
    "BigIntegerField": "int8", "BinaryField": "bytea", "BooleanField": "bool", "CharField": "text",
    "DateTimeField": "timestamptz", "FloatField": "float8", "ForeignKey": "int8", "IntegerField": "int4",
    "JSONField": "jsonb", "PositiveIntegerField": "int4", "PositiveSmallIntegerField": "int2",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    table: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    keys: tuple[str, ...]


@lru_cache(maxsize=64)
def target_of(model: type[Model], columns: tuple[str, ...], keys: tuple[str, ...]) -> Target:
    """`columns` as the database calls them."""
    by_column = {field.column: field for field in model._meta.concrete_fields}
    types = tuple(_TYPES[by_column[column].get_internal_type()] for column in columns)
    return Target(model._meta.db_table, columns, types, keys)


def put(target: Target, rows: Iterable[Sequence[Any]], *, replace: bool) -> None:
    """Rows that are there already are replaced, or left as they are. Needs a transaction around it."""
    columns = ", ".join(target.columns)
    with connection.cursor() as cursor:
        fresh = _copy(cursor, target, rows)
        cursor.execute(
            f"INSERT INTO {target.table} ({columns}) SELECT {columns} FROM {fresh}"
            f" ON CONFLICT ({', '.join(target.keys)}) {_on_conflict(target, replace=replace)}"
        )
        cursor.execute(f"DELETE FROM {fresh}")


def change(target: Target, rows: Iterable[Sequence[Any]]) -> None:
    """Sets the columns of rows that are there, found by their keys. Needs a transaction around it."""
    values = [column for column in target.columns if column not in target.keys]
    with connection.cursor() as cursor:
        fresh = _copy(cursor, target, rows)
        cursor.execute(
            f"UPDATE {target.table} AS stored SET {', '.join(f'{name} = fresh.{name}' for name in values)}"
            f" FROM {fresh} AS fresh WHERE {' AND '.join(f'stored.{k} = fresh.{k}' for k in target.keys)}"
        )
        cursor.execute(f"DELETE FROM {fresh}")


def _copy(cursor: Any, target: Target, rows: Iterable[Sequence[Any]]) -> str:
    fresh, columns = f"fresh_{target.table}_{len(target.columns)}", ", ".join(target.columns)
    cursor.execute(
        f"CREATE TEMP TABLE IF NOT EXISTS {fresh} ON COMMIT DELETE ROWS"
        f" AS SELECT {columns} FROM {target.table} WITH NO DATA"
    )
    with cursor.copy(f"COPY {fresh} ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(target.types)
        for row in rows:
            copy.write_row(row)
    return fresh


def _on_conflict(target: Target, *, replace: bool) -> str:
    if not replace:
        return "DO NOTHING"
    values = [column for column in target.columns if column not in target.keys]
    return f"DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in values)}"
