"""Thousands of stored histograms added up as arrays, by column: exact in any order. Quantiles are taken afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from django.db import connection

from pool.domain.heatmap import Columns, Rows
from pool.domain.histogram import FORMAT, HEAD_BYTES, LAST_BUCKET, PAIR_BYTES, value_of
from pool.models import RESOLUTIONS

Counts = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
BUCKETS = LAST_BUCKET + 1
_PAIR = np.dtype([("bucket", "<u2"), ("count", "<u4")])
_HEAD = np.dtype([("format", "u1"), ("sum_us", "<i8")])
_VALUES = np.array([value_of(bucket) for bucket in range(BUCKETS)])
assert (_PAIR.itemsize, _HEAD.itemsize) == (PAIR_BYTES, HEAD_BYTES)


@dataclass(frozen=True, slots=True)
class Summed:
    """Histograms by column: `counts[column, bucket]` and the exact `sums_s[column]`."""

    counts: Counts
    sums_s: Seconds

    @property
    def samples(self) -> Counts:
        """By column."""
        totals: Counts = self.counts.sum(axis=1)
        return totals

    def total(self) -> Summed:
        """All columns as one."""
        return Summed(self.counts.sum(axis=0, keepdims=True), self.sums_s.sum(keepdims=True))

    def quantile(self, share: float) -> Seconds:
        """By column, in seconds; NaN where there are no samples. The same ranks as `Histogram.quantile`."""
        samples = self.samples
        ranks = np.clip(np.ceil(share * samples).astype(np.int64) - 1, 0, np.maximum(samples - 1, 0))
        below = np.cumsum(self.counts, axis=1)
        buckets = (below > ranks[:, None]).argmax(axis=1)
        return np.where(samples > 0, _VALUES[buckets], math.nan)

    def span(self) -> tuple[int, int] | None:
        """The lowest and the highest bucket with samples; None without any."""
        filled = np.flatnonzero(self.counts.any(axis=0))
        return (int(filled[0]), int(filled[-1])) if filled.size else None

    def fold(self, rows: Rows) -> Counts:
        """`[row, column]`. What lies outside the rows is left out."""
        padded = np.zeros((self.counts.shape[0], rows.per_row * rows.count), dtype=np.int64)
        part = self.counts[:, rows.first : rows.first + padded.shape[1]]
        padded[:, : part.shape[1]] = part
        folded: Counts = padded.reshape(-1, rows.count, rows.per_row).sum(axis=2).T
        return folded


def sum_histograms(contents: Sequence[bytes], places: Sequence[int], columns: int) -> Summed:
    """`places`: the column of each histogram. Raises ValueError for bytes that no histogram wrote."""
    lengths = np.array([len(content) for content in contents], dtype=np.int64)
    heads = b"".join([content[:HEAD_BYTES] for content in contents])
    pairs = b"".join([content[HEAD_BYTES:] for content in contents])
    return _sum_joined(heads, pairs, lengths, np.asarray(places, dtype=np.int64), columns)


def load_summed(series: Iterable[int], stage: str, columns: Columns) -> Summed:
    """The stage's histograms of all these series by column. 1 query."""
    rows = _fetch_joined(series, stage, columns, by="0")
    return _sum_rows([row[1:] for row in rows], columns.count)


def load_by_group(groups: Mapping[int, int], count: int, stage: str, columns: Columns) -> list[Summed]:
    """The stage's histograms by group and column. `groups`: series → one of `count` groups. 1 query."""
    rows = _fetch_joined(groups, stage, columns, by="series_id")
    placed = [(groups[series] * columns.count + column, *rest) for series, column, *rest in rows]
    summed = _sum_rows(placed, count * columns.count)
    parts = [slice(group * columns.count, (group + 1) * columns.count) for group in range(count)]
    return [Summed(summed.counts[part], summed.sums_s[part]) for part in parts]


def _fetch_joined(series: Iterable[int], stage: str, columns: Columns, *, by: str) -> list[tuple[Any, ...]]:
    """(`by`, column, the heads of its histograms one after the other, their pairs, the length of each). The database
    joins them, and the bytes come as they are: row by row and as text they would take longer to read than to add
    up."""
    table = RESOLUTIONS[columns.resolution_s][0]._meta.db_table
    content = connection.ops.quote_name(stage)
    statement = f"""
        SELECT {by}, floor(extract(epoch FROM at - %s) / %s)::int,
               string_agg(substr({content}, 1, {HEAD_BYTES}), ''::bytea),
               string_agg(substr({content}, {HEAD_BYTES + 1}), ''::bytea), array_agg(octet_length({content}))
        FROM {table} WHERE series_id = ANY(%s) AND at >= %s AND at < %s AND {content} <> ''::bytea GROUP BY 1, 2"""
    return fetch_binary(statement, [columns.start, columns.step_s, list(series), columns.start, columns.end])


def fetch_binary(statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
    """All rows, with bytes as they are. Past Django's cursor, which asks for text, but with its errors."""
    with (
        connection.wrap_database_errors,
        connection.cursor() as cursor,
        psycopg.Cursor(cursor.connection) as plain,
    ):
        plain.execute(statement, values, binary=True)
        rows: list[tuple[Any, ...]] = plain.fetchall()
        return rows


def _sum_rows(rows: Sequence[tuple[int, bytes, bytes, list[int]]], columns: int) -> Summed:
    sizes = [np.array(row[3], dtype=np.int64) for row in rows]
    places = np.repeat(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([len(size) for size in sizes], dtype=np.int64),
    )
    lengths = np.concatenate([*sizes, np.empty(0, np.int64)])
    heads, pairs = b"".join([row[1] for row in rows]), b"".join([row[2] for row in rows])
    return _sum_joined(heads, pairs, lengths, places, columns)


def _sum_joined(
    heads: bytes, pairs: bytes, lengths: npt.NDArray[np.int64], places: npt.NDArray[np.int64], columns: int
) -> Summed:
    if (lengths < HEAD_BYTES).any() or ((lengths - HEAD_BYTES) % PAIR_BYTES).any():
        raise ValueError("a histogram's bytes are cut")
    read = np.frombuffer(heads, _HEAD)
    if (read["format"] != FORMAT).any():
        raise ValueError("these bytes are no histograms of this format")
    sums = np.bincount(places, read["sum_us"], minlength=columns) / 1e6
    cells = np.repeat(places * BUCKETS, (lengths - HEAD_BYTES) // PAIR_BYTES)
    return Summed(_count(pairs, cells, columns), sums)


def _count(pairs: bytes, cells: npt.NDArray[np.int64], columns: int) -> Counts:
    """`cells`: by pair, where its column begins; changed in place."""
    read = np.frombuffer(pairs, _PAIR)
    if read.size and int(read["bucket"].max()) > LAST_BUCKET:
        raise ValueError(f"a bucket is beyond the last one, {LAST_BUCKET}")
    cells += read["bucket"]
    # Sums of whole numbers in float64 are exact up to 2**53.
    flat = np.bincount(cells, read["count"], minlength=columns * BUCKETS)
    return flat.astype(np.int64).reshape(columns, BUCKETS)
