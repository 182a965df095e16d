"""Where the time of requests went: the gateway's stages, each with what the engine says of it, and the gap between both
clocks. The gateway's clock is the truth, the engine's explains it (`design.md`, telemetry)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db.models import Sum

from pool.domain.cells import SUMS
from pool.domain.heatmap import Columns
from pool.models import RESOLUTIONS
from pool.queries.ages import FigureState
from pool.queries.cells import CellFilter, find_series
from pool.queries.data_states import DataState, load_data_state

MARKED_FROM_SHARE = 0.2
ALL_OF_IT = 0.999
"""From this share of the time on, what the engine told is all, but for rounding."""
_COUNTS = ("requests", "refused", "joined")


class Part(StrEnum):
    """`Clock` says who measured it."""

    TOKENIZE = "tokenize"
    """The gateway counts the prompt's tokens."""
    QUEUE = "queue"
    """The gateway holds the request back until a replica has a slot."""
    ENGINE_QUEUE = "engine_queue"
    """The engine has it, but does not compute it yet."""
    PREFILL = "prefill"
    """The engine computes the prompt, up to the first token."""
    DECODE = "decode"
    """The engine computes the further tokens."""
    GAP = "gap"
    """From the slot to the last byte, without what the engine tells: network, API server, detokenizing, pacing."""
    FIRST_BYTE = "first_byte"
    """From the slot to the first byte, where the engine tells nothing. Of an answer in one piece: all of its time."""
    LAST_BYTE = "last_byte"
    """From the first byte to the last, where the engine tells nothing."""
    STREAM = "stream"
    """The client did not read."""
    OTHER = "other"
    """What is left of the whole: failed attempts, and the gateway's own work."""


class Clock(StrEnum):
    GATEWAY = "gateway"
    ENGINE = "engine"
    GAP = "gap"
    """The gateway's figure minus the engine's."""


_CLOCKS: Mapping[Part, Clock] = {
    Part.ENGINE_QUEUE: Clock.ENGINE,
    Part.PREFILL: Clock.ENGINE,
    Part.DECODE: Clock.ENGINE,
    Part.GAP: Clock.GAP,
}


@dataclass(frozen=True)
class Component:
    """`seconds`: over all requests; below 0 only for a gap, where the engine's clock says more than the gateway's.
    `share`: of all their time, None without any. `mean_s`: per request that was not refused. `marked`: over 20 %."""

    part: Part
    clock: Clock
    seconds: float
    share: float | None
    mean_s: float | None
    marked: bool
    state: FigureState


@dataclass(frozen=True)
class Composition:
    """Of the requests that reached a replica. `requests`: all but the refused ones. `joined`: those whose times the
    engine told; its parts are scaled from them to all by their share of the time, and are estimated where that is less
    than all of it. The components' seconds sum up to `e2e_s`."""

    model: str
    start: datetime
    end: datetime
    requests: int
    joined: int
    e2e_s: float
    joined_share: float | None
    """Of the time."""
    components: tuple[Component, ...]
    data: DataState


def load_composition(wanted: CellFilter, columns: Columns, *, now: datetime) -> Composition:
    """6 queries, whatever the range."""
    series = find_series(wanted)
    table = RESOLUTIONS[columns.resolution_s][0]
    cells = table.objects.filter(series_id__in=list(series), at__gte=columns.start, at__lt=columns.end)
    names = (*_COUNTS, *SUMS)
    found = cells.aggregate(**{f"sum_{name}": Sum(name) for name in names})
    sums = {name: float(found[f"sum_{name}"] or 0) for name in names}
    requests = int(sums["requests"] - sums["refused"])
    filled = [False] * columns.count
    for at in cells.values_list("at", flat=True).distinct().order_by():
        filled[int((at - columns.start).total_seconds() // columns.step_s)] = True
    return Composition(
        model=wanted.model,
        start=columns.start,
        end=columns.end,
        requests=requests,
        joined=int(sums["joined"]),
        e2e_s=sums["e2e_s"],
        joined_share=_joined_share(sums) if sums["e2e_s"] else None,
        components=make_components(sums, requests),
        data=load_data_state(series, columns, filled, now=now),
    )


def make_components(sums: Mapping[str, float], requests: int) -> tuple[Component, ...]:
    """`sums`: of the cells, by their names."""
    seconds = _split(sums)
    total_s = sums["e2e_s"]
    engine_state = FigureState.MEASURED if _joined_share(sums) >= ALL_OF_IT else FigureState.ESTIMATED
    return tuple(
        Component(
            part=part,
            clock=_CLOCKS.get(part, Clock.GATEWAY),
            seconds=value,
            share=value / total_s if total_s else None,
            mean_s=value / requests if requests else None,
            marked=bool(total_s) and value / total_s > MARKED_FROM_SHARE,
            state=engine_state if part in _CLOCKS else FigureState.MEASURED,
        )
        for part, value in seconds.items()
    )


def _split(sums: Mapping[str, float]) -> dict[Part, float]:
    stages_s = sum(sums[name] for name in ("tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s"))
    seconds = {Part.TOKENIZE: sums["tokenize_s"], Part.QUEUE: sums["queue_s"]}
    share = _joined_share(sums)
    if share:
        engine = {
            Part.ENGINE_QUEUE: sums["engine_queue_s"] / share,
            Part.PREFILL: sums["engine_prefill_s"] / share,
            Part.DECODE: sums["engine_decode_s"] / share,
        }
        # One gap for both halves: of an answer in one piece all of the time lies before its first byte.
        gap_s = sums["first_byte_s"] + sums["decode_s"] - sum(engine.values())
        seconds |= engine | {Part.GAP: gap_s}
    else:
        seconds |= {Part.FIRST_BYTE: sums["first_byte_s"], Part.LAST_BYTE: sums["decode_s"]}
    return seconds | {Part.STREAM: sums["stream_s"], Part.OTHER: sums["e2e_s"] - stages_s}


def _joined_share(sums: Mapping[str, float]) -> float:
    """Of the time of all requests, that of the joined ones; 0 to 1."""
    return min(1.0, sums["joined_e2e_s"] / sums["e2e_s"]) if sums["e2e_s"] > 0 else 0.0
