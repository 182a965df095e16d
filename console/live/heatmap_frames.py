"""A live heatmap's binary frames, little-endian; `static/js/lib/frames.js` reads them.

Head, 64 bytes: version u8, kind u8 (1 whole, 2 changes, 3 beat), state u8 (`State`), 1 spare byte, rows u16, first
bucket u16, buckets a row u16, 2 spare bytes, seq u32, from u32, columns u32, samples of the last minute u32, then f64:
the server's time, since when the state is not live (NaN: it is); f32: P50, P95, P99 of the last minute (NaN: none);
8 spare bytes. Then each column: its second f64, samples u32, P50, P95, P99 f32, and a u32 for each row.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import IntEnum

from console.live.heatmap_window import Column, HeatmapWindow

VERSION = 1
WHOLE, CHANGES, BEAT = 1, 2, 3
_HEAD = struct.Struct("<BBBxHHHxxIIIIddfff8x")
HEAD_BYTES = _HEAD.size
_LARGEST = 2**32 - 1


class State(IntEnum):
    """What the shown figures are worth."""

    LIVE = 0
    """Cells come as requests end."""
    POLLED = 1
    """Redis is silent: what the database holds is shown, once a second."""
    BEHIND = 2
    """Telemetry has not read what gateways reported since the stated time."""
    STALE = 3
    """Neither Redis nor the database answers."""


def encode_frame(
    window: HeatmapWindow, *, since: int | None, now_s: float, state: State, state_since_s: float | None
) -> bytes:
    """`since` None: the whole. A browser that is up to date gets a beat."""
    whole = since is None or since < window.whole_since
    kind = WHOLE if whole else CHANGES if since != window.seq else BEAT
    columns = list(window.columns(since=0 if whole else since or 0)) if kind != BEAT else []
    summary = window.summary(now_s=now_s)
    head = _HEAD.pack(
        VERSION,
        kind,
        state,
        window.rows.count,
        window.rows.first,
        window.rows.per_row,
        window.seq & _LARGEST,
        0 if whole else (since or 0) & _LARGEST,
        len(columns),
        min(summary.samples, _LARGEST),
        now_s,
        math.nan if state_since_s is None else state_since_s,
        *_known(summary.quantiles),
    )
    body = struct.Struct(f"<dIfff{window.rows.count}I")
    return b"".join([head, *(_pack_column(body, column) for column in columns)])


def _pack_column(body: struct.Struct, column: Column) -> bytes:
    return body.pack(column.at_s, column.samples, *_known(column.quantiles), *column.counts)


def _known(quantiles: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in quantiles]
