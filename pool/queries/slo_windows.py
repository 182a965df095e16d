"""What SLOs are judged by: requests of the last minutes from 10 s cells, of longer times from an SLO's own spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Max, Q, Sum
from django.db.models.functions import ExtractHour, TruncDate

from pool.domain.burn import ALL_SPANS, BUDGET_PERIOD, Count
from pool.domain.cells import SeriesKey
from pool.domain.histogram import Histogram
from pool.domain.slo import Window
from pool.domain.slo_signals import OBJECTIVES, SloRef
from pool.models import FiveMinuteCell, Series, SloSpan, TenSecondCell

KEPT: Final = timedelta(minutes=15)
AGAIN: Final = timedelta(seconds=60)
"""Read anew in each pass: what comes late still counts."""
SPAN: Final = timedelta(minutes=5)
_COUNTS: Final = ("requests", "errors", "degraded", "interrupted")
_KEY: Final = ("model", "release", "replica", "lane", "tier", "label", "long_prompt", "region")


@dataclass(slots=True)
class _Slot:
    counts: tuple[int, ...]
    ttft: dict[int, int]


@dataclass
class RecentCells:
    """The last 15 minutes in memory, so that a pass reads only the newest cells. One per process; not shared."""

    slots: dict[int, dict[datetime, _Slot]] = field(default_factory=lambda: defaultdict(dict))
    keys: dict[int, SeriesKey] = field(default_factory=dict)
    newest_at: datetime | None = None
    read_at: datetime | None = None

    def refresh(self, now: datetime) -> None:
        """1 query, and 1 more where a series is new."""
        is_gap = self.read_at is None or now - self.read_at > AGAIN / 2 or now < self.read_at
        start = now - (KEPT + timedelta(seconds=10) if is_gap else AGAIN)
        rows = TenSecondCell.objects.filter(at__gte=start, series__region="")
        for series, at, ttft, *counts in rows.values_list("series_id", "at", "ttft", *_COUNTS):
            self.slots[series][at] = _Slot(
                tuple(counts), Histogram.from_bytes(bytes(ttft)).counts if ttft else {}
            )
            if self.newest_at is None or at > self.newest_at:
                self.newest_at = at
        self._forget(now)
        self._name(self.slots.keys() - self.keys.keys())
        self.read_at = now

    def window(self, slo: SloRef, span: timedelta, now: datetime) -> Window:
        """Of the cells that begin within the last `span`."""
        start, totals, long_requests = now - span, [0] * len(_COUNTS), 0
        ttft: dict[int, int] = defaultdict(int)
        long_ttft: dict[int, int] = defaultdict(int)
        for series, slots in self.slots.items():
            key = self.keys[series]
            if not covers(slo, key):
                continue
            for at, slot in slots.items():
                if at <= start:
                    continue
                totals = [total + count for total, count in zip(totals, slot.counts, strict=True)]
                long_requests += slot.counts[0] if key.long_prompt else 0
                for bucket, count in slot.ttft.items():
                    ttft[bucket] += count
                    if key.long_prompt:
                        long_ttft[bucket] += count
        counts = dict(zip(_COUNTS, totals, strict=True))
        return Window(
            totals[0], counts, Histogram(dict(ttft)), Histogram(dict(long_ttft)), long_requests=long_requests
        )

    def _forget(self, now: datetime) -> None:
        for series, slots in list(self.slots.items()):
            for at in [at for at in slots if at <= now - KEPT - timedelta(seconds=10)]:
                del slots[at]
            if not slots:
                del self.slots[series]
                self.keys.pop(series, None)

    def _name(self, series: Iterable[int]) -> None:
        missing = list(series)
        if missing:
            rows = Series.objects.filter(pk__in=missing).values_list("pk", *_KEY)
            self.keys.update({number: SeriesKey(*key) for number, *key in rows})


def covers(slo: SloRef, key: SeriesKey) -> bool:
    pairs = ((slo.lane, key.lane), (slo.tier, key.tier), (slo.label, key.label))
    return slo.model == key.model and all(not wanted or wanted == found for wanted, found in pairs)


def list_spans(slo: SloRef, *, start: datetime, end: datetime) -> dict[datetime, Window]:
    """From five-minute cells in [start, end); times without requests are missing. 2 queries."""
    chosen: Any = Series.objects.filter(model=slo.model, region="")
    for name in ("lane", "tier", "label"):
        if wanted := getattr(slo, name):
            chosen = chosen.filter(**{name: wanted})
    rows = FiveMinuteCell.objects.filter(
        series_id__in=list(chosen.values_list("pk", flat=True)), at__gte=start, at__lt=end
    )
    found: dict[datetime, tuple[list[int], dict[int, int]]] = {}
    for at, ttft, *counts in rows.values_list("at", "ttft", *_COUNTS):
        totals, buckets = found.setdefault(at, ([0] * len(_COUNTS), {}))
        for place, count in enumerate(counts):
            totals[place] += count
        if ttft:
            for bucket, count in Histogram.from_bytes(bytes(ttft)).counts.items():
                buckets[bucket] = buckets.get(bucket, 0) + count
    return {
        at: Window(totals[0], dict(zip(_COUNTS, totals, strict=True)), Histogram(buckets))
        for at, (totals, buckets) in found.items()
    }


def sum_spans(now: datetime) -> dict[int, dict[timedelta, dict[str, Count]]]:
    """By SLO, length of time and objective. A span counts where it overlaps the time, so up to 5 minutes more."""
    sums: dict[str, Any] = {}
    lengths = (*ALL_SPANS, BUDGET_PERIOD)
    for number, length in enumerate(lengths):
        within = Q(at__gt=now - length - SPAN)
        for name in ("requests", "streams", *OBJECTIVES):
            sums[f"{name}_{number}"] = Sum(name, filter=within, default=0)
    rows = SloSpan.objects.filter(at__gt=now - BUDGET_PERIOD - SPAN).values("slo_id").annotate(**sums)
    return {
        row["slo_id"]: {length: _counts(row, number) for number, length in enumerate(lengths)} for row in rows
    }


def _counts(row: Mapping[str, Any], number: int) -> dict[str, Count]:
    return {
        name: Count(
            row[f"{'streams' if name.startswith('ttft') else 'requests'}_{number}"], row[f"{name}_{number}"]
        )
        for name in OBJECTIVES
    }


def list_hours(slo_ids: Sequence[int], now: datetime) -> dict[int, list[float | None]]:
    """Mean requests of each hour of the day (UTC) over the last seven days, by SLO; None = no such hour was seen."""
    rows = (
        SloSpan.objects.filter(slo_id__in=list(slo_ids), at__gt=now - timedelta(days=7))
        .annotate(hour=ExtractHour("at"), day=TruncDate("at"))
        .values("slo_id", "hour", "day")
        .annotate(total=Sum("requests"))
    )
    found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["slo_id"]][row["hour"]].append(row["total"])
    return {
        slo: [sum(hours[hour]) / len(hours[hour]) if hour in hours else None for hour in range(24)]
        for slo, hours in found.items()
    }


def find_newest_cell() -> datetime | None:
    found: datetime | None = TenSecondCell.objects.aggregate(at=Max("at"))["at"]
    return found
