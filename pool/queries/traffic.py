"""Recent traffic of a model from its cells: histograms are merged first, quantiles taken afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pool.domain.histogram import Histogram
from pool.models import TrafficCell

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
    rows = TrafficCell.objects.filter(model=model, at__gt=now - window).order_by("release", "at")
    by_release: dict[int, list[TrafficCell]] = {}
    for row in rows:
        by_release.setdefault(row.release, []).append(row)
    return [_view(release, cells, window) for release, cells in by_release.items()]


def _view(release: int, cells: list[TrafficCell], window: timedelta) -> TrafficView:
    ttft = Histogram()
    for cell in cells:
        ttft = ttft.merge(Histogram.from_bytes(bytes(cell.ttft)))
    return TrafficView(
        release=release,
        requests=sum(cell.requests for cell in cells),
        errors=sum(cell.errors for cell in cells),
        interrupted=sum(cell.interrupted for cell in cells),
        output_tokens=sum(cell.output_tokens for cell in cells),
        window_s=window.total_seconds(),
        samples=ttft.count,
        ttft_p50_s=ttft.quantile(0.5),
        ttft_p95_s=ttft.quantile(0.95),
        ttft_p99_s=ttft.quantile(0.99),
        newest_at=cells[-1].at,
    )
