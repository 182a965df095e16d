"""Recent traffic of a model from its cells: histograms are merged first, quantiles taken afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pool.domain.cells import Cell
from pool.domain.histogram import Histogram
from pool.queries.cells import CellFilter, find_series, list_cells

WINDOW = timedelta(minutes=5)


@dataclass(frozen=True)
class TrafficView:
    """`ttft_s` quantiles are None without samples: missing is not zero."""

    release: int
    requests: int
    errors: int
    interrupted: int
    output_tokens: int
    window_s: float
    samples: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    newest_at: datetime | None

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.window_s

    @property
    def error_ratio(self) -> float | None:
        return self.errors / self.requests if self.requests else None


def list_recent_traffic(model: str, *, now: datetime, window: timedelta = WINDOW) -> list[TrafficView]:
    """One view per release that had traffic in the window; the newest release last."""
    series = find_series(CellFilter(model=model))
    by_release: dict[int, Cell] = {}
    newest: dict[int, datetime] = {}
    for number, at, cell in list_cells(
        series, start=now - window, end=now + timedelta(seconds=1), resolution_s=10, stages=("ttft",)
    ):
        release = series[number].release
        by_release.setdefault(release, Cell()).add(cell)
        newest[release] = at
    return [_view(release, by_release[release], newest[release], window) for release in sorted(by_release)]


def _view(release: int, cell: Cell, newest_at: datetime, window: timedelta) -> TrafficView:
    ttft = cell.stages.get("ttft", Histogram())
    return TrafficView(
        release=release,
        requests=cell.counts.get("requests", 0),
        errors=cell.counts.get("errors", 0),
        interrupted=cell.counts.get("interrupted", 0),
        output_tokens=cell.counts.get("output_tokens", 0),
        window_s=window.total_seconds(),
        samples=ttft.count,
        ttft_p50_s=ttft.quantile(0.5),
        ttft_p95_s=ttft.quantile(0.95),
        ttft_p99_s=ttft.quantile(0.99),
        newest_at=newest_at,
    )
