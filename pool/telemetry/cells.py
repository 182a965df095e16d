"""Folds request facts into cells of ten seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pool.domain.histogram import Histogram

CELL_S = 10
_INTERRUPTED = frozenset({"interrupted", "stream_interrupted"})
_CALLER_GONE = frozenset({"client_gone", "client_abort", "cancelled", "aborted"})


@dataclass(frozen=True)
class Series:
    at: datetime
    model: str
    release: int
    replica: str
    lane: str
    tier: str


@dataclass
class Cell:
    """Counts of one series. An error is a fault of ours or of the engine: 5xx or an interrupted stream."""

    requests: int = 0
    errors: int = 0
    interrupted: int = 0
    spilled: int = 0
    output_tokens: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)

    def merge(self, other: Cell) -> Cell:
        return Cell(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            interrupted=self.interrupted + other.interrupted,
            spilled=self.spilled + other.spilled,
            output_tokens=self.output_tokens + other.output_tokens,
            ttft=self.ttft.merge(other.ttft),
            e2e=self.e2e.merge(other.e2e),
        )


def fold(facts: Iterable[Mapping[str, Any]]) -> tuple[dict[Series, Cell], int]:
    """The cells of these facts, and how many facts could not be read."""
    cells: dict[Series, Cell] = {}
    unreadable = 0
    for fact in facts:
        try:
            series = _series(fact)
            cell = cells.setdefault(series, Cell())
            _count(cell, fact)
        except (KeyError, TypeError, ValueError):
            unreadable += 1
    return {series: cell for series, cell in cells.items() if cell.requests}, unreadable


def _series(fact: Mapping[str, Any]) -> Series:
    at = float(fact["at"])
    return Series(
        at=datetime.fromtimestamp(at - at % CELL_S, tz=UTC),
        model=str(fact["model"])[:63],
        release=int(fact.get("release") or 0),
        replica=str(fact.get("replica") or "")[:16],
        lane=str(fact.get("lane") or "")[:63],
        tier=str(fact.get("tier") or "")[:16],
    )


def _count(cell: Cell, fact: Mapping[str, Any]) -> None:
    outcome = str(fact.get("outcome") or "")
    interrupted = outcome in _INTERRUPTED
    ttft_s, e2e_s = fact.get("ttft_s"), fact.get("e2e_s")
    if ttft_s is not None:
        cell.ttft.add(float(ttft_s))
    if e2e_s is not None and outcome not in _CALLER_GONE:
        cell.e2e.add(float(e2e_s))
    cell.requests += 1
    cell.interrupted += interrupted
    cell.errors += interrupted or int(fact.get("status") or 0) >= 500
    cell.spilled += bool(fact.get("spilled"))
    cell.output_tokens += int(fact.get("output_tokens") or 0)
