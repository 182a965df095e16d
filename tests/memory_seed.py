"""Samples of replicas' memory for tests and for people who work on the pages, written as telemetry writes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pool.domain.gauges import GaugeCell, Subject
from pool.domain.memory_map import tail_ratio
from pool.telemetry.store import add_gauges

BLOCK_TOKENS = 16


def make_cell(
    *,
    used: float,
    reusable: float = 0,
    free: float = 0,
    shared: float = 0,
    tail: float = 0.0,
    gauges: Mapping[str, float] | None = None,
    counters: Mapping[str, float] | None = None,
) -> GaugeCell:
    """One sample of one second. `tail`: share of the held tokens that is wasted."""
    cell = GaugeCell(counters=dict(counters or {}))
    held = used * BLOCK_TOKENS
    values = {
        "kv_blocks": used + reusable + free,
        "kv_used_blocks": used,
        "kv_shared_blocks": shared,
        "kv_reusable_blocks": reusable,
        "kv_free_blocks": free,
        "kv_held_tokens": held,
        "kv_tail_tokens": held * tail,
        "kv_tail_ratio": tail_ratio(held_blocks=used, held_tokens=held, tail_tokens=held * tail),
    }
    for name, value in (values | dict(gauges or {})).items():
        cell.note(name, value)
    return cell


def store_sample(subject: Subject, at: datetime, cell: GaugeCell) -> None:
    add_gauges({(subject, at): cell})
