"""The last minutes of one stage of a model's requests, second by second, as a live heatmap shows them. No I/O.

A cell of one second and series comes whole, several times, from the channel of open cells and from the database, in
any order: the one with the most samples holds. So nothing that comes twice counts twice, and a lost message is made
good by the next one or by the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pool.domain.cells import SeriesKey
from pool.domain.heatmap import Rows, choose_rows
from pool.domain.histogram import Histogram

WINDOW_S = 300
RECENT_S = 30
"""So long the series of a second are kept apart; what is later comes from the database, for all series at once."""
MOST_RECENT_CELLS = 40_000
AHEAD_S = 60
"""A cell that claims to be further ahead of the clock is not believed."""
SUMMARY_S = 60
QUANTILES = (0.5, 0.95, 0.99)
_TOO_WIDE = 2
"""Rows are laid out anew when so many times fewer would do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose requests, and which of their times. Empty and None = all."""

    model: str
    stage: str = "ttft"
    release: int | None = None
    replica: str = ""
    lane: str = ""
    tier: str = ""
    label: str = ""
    long_prompt: bool | None = None

    def matches(self, key: SeriesKey) -> bool:
        return (
            key.model == self.model
            and not key.region
            and (self.release is None or key.release == self.release)
            and all(
                not asked or asked == has
                for asked, has in (
                    (self.replica, key.replica),
                    (self.lane, key.lane),
                    (self.tier, key.tier),
                    (self.label, key.label),
                )
            )
            and (self.long_prompt is None or key.long_prompt == self.long_prompt)
        )


@dataclass(frozen=True, slots=True)
class Column:
    """Of one second. `quantiles` are those of QUANTILES, in seconds; None without samples."""

    at_s: int
    samples: int
    quantiles: tuple[float | None, ...]
    counts: tuple[int, ...]
    """By row, from the shortest time on."""


@dataclass(frozen=True, slots=True)
class Summary:
    samples: int
    quantiles: tuple[float | None, ...]


class HeatmapWindow:
    """Bounded: 300 merged seconds, and the series of the newest of them."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.seq = 0
        self.rows = Rows(first=0, per_row=1, count=0)
        self.whole_since = 0
        """A browser that is behind this `seq` needs the whole window: the rows were laid out anew."""
        self.late: set[int] = set()
        """Seconds to read from the database again."""
        self._recent: dict[int, dict[SeriesKey, Histogram]] = {}
        self._recent_cells = 0
        self._merged: dict[int, Histogram] = {}
        self._changed_at: dict[int, int] = {}
        self._touched: set[int] = set()
        self._matches: dict[SeriesKey, bool] = {}

    def add(self, at_s: int, key: SeriesKey, histogram: Histogram, *, now_s: float) -> None:
        """A whole cell of one second."""
        if not (now_s - WINDOW_S <= at_s <= now_s + AHEAD_S) or not self._wants(key):
            return
        if at_s < now_s - RECENT_S:
            self.late.add(at_s)
            return
        cells = self._recent.setdefault(at_s, {})
        before = cells.get(key)
        if before is None:
            self._recent_cells += 1
        elif before.count >= histogram.count:
            return
        cells[key] = histogram
        self._touched.add(at_s)

    def fill(self, rows: Iterable[tuple[int, SeriesKey, Histogram]], *, now_s: float) -> None:
        """What the database holds of whole seconds: of old ones all series together."""
        old: dict[int, Histogram] = {}
        for at_s, key, histogram in rows:
            if at_s < now_s - RECENT_S:
                found = old.get(at_s)
                old[at_s] = histogram if found is None else found.merge(histogram)
            else:
                self.add(at_s, key, histogram, now_s=now_s)
        for at_s, histogram in old.items():
            known = self._merged.get(at_s)
            if known is None or known.count < histogram.count:
                self._merged[at_s] = histogram
                self._touched.add(at_s)
            self.late.discard(at_s)

    def settle(self, *, now_s: float) -> bool:
        """Merges what came and forgets what is too old. True when there is something new to show."""
        for at_s in self._touched:
            self._merge_recent(at_s)
        self._forget(now_s)
        if not self._touched:
            return False
        self.seq += 1
        for at_s in self._touched & self._merged.keys():
            self._changed_at[at_s] = self.seq
        self._touched.clear()
        self._lay_out()
        return True

    def columns(self, *, since: int) -> Iterator[Column]:
        """Those that changed after `since`, in order of time."""
        for at_s in sorted(at for at, seq in self._changed_at.items() if seq > since):
            yield self._column(at_s)

    def summary(self, *, now_s: float) -> Summary:
        """Of the requests that ended in the last minute."""
        counts: dict[int, int] = {}
        for at_s, merged in self._merged.items():
            if at_s > now_s - SUMMARY_S:
                for bucket, count in merged.counts.items():
                    counts[bucket] = counts.get(bucket, 0) + count
        total = Histogram(counts)
        return Summary(total.count, tuple(total.quantile(share) for share in QUANTILES))

    def _wants(self, key: SeriesKey) -> bool:
        known = self._matches.get(key)
        if known is None:
            if len(self._matches) > MOST_RECENT_CELLS:
                self._matches.clear()
            known = self._matches[key] = self.wanted.matches(key)
        return known

    def _merge_recent(self, at_s: int) -> None:
        cells, known = self._recent.get(at_s), self._merged.get(at_s)
        if not cells:
            return
        merged = _merge(cells.values())
        if known is None or merged.count >= known.count:
            self._merged[at_s] = merged
        else:
            # Its other series are no longer kept apart.
            self.late.add(at_s)

    def _forget(self, now_s: float) -> None:
        for at_s in sorted(self._recent):
            if at_s >= now_s - RECENT_S and self._recent_cells <= MOST_RECENT_CELLS:
                break
            self._recent_cells -= len(self._recent.pop(at_s))
        gone = [at_s for at_s in self._merged if at_s < now_s - WINDOW_S]
        for at_s in gone:
            del self._merged[at_s]
            self._changed_at.pop(at_s, None)
        self.late = {at_s for at_s in self.late if at_s >= now_s - WINDOW_S}

    def _lay_out(self) -> None:
        ends = span_of(self._merged)
        if ends is None:
            return
        fitting = choose_rows(*ends)
        fits = all(self.rows.row_of(end) is not None for end in ends)
        if not fits or self.rows.per_row * self.rows.count > _TOO_WIDE * fitting.per_row * fitting.count:
            self.rows = fitting
            self.whole_since = self.seq

    def _column(self, at_s: int) -> Column:
        merged, rows = self._merged[at_s], self.rows
        counts = [0] * rows.count
        for bucket, count in merged.counts.items():
            counts[(bucket - rows.first) // rows.per_row] += count
        quantiles = tuple(merged.quantile(share) for share in QUANTILES)
        return Column(at_s, merged.count, quantiles, tuple(counts))


def span_of(seconds: Mapping[int, Histogram]) -> tuple[int, int] | None:
    """The lowest and the highest bucket that holds anything."""
    filled = [merged.counts for merged in seconds.values() if merged.counts]
    if not filled:
        return None
    return min(min(counts) for counts in filled), max(max(counts) for counts in filled)


def _merge(histograms: Iterable[Histogram]) -> Histogram:
    counts: dict[int, int] = {}
    sum_s = 0.0
    for histogram in histograms:
        sum_s += histogram.sum_s
        for bucket, count in histogram.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
    return Histogram(counts, sum_s)
