"""The two axes of a heatmap of times: which columns a range has, and which rows its histograms are drawn in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from pool.domain.errors import PoolError
from pool.domain.histogram import GAMMA, HIGHEST_S, LAST_BUCKET, LOWEST_S

LARGEST_COLUMNS: Final = 300
LARGEST_ROWS: Final = 60
STEPS_S: Final = (
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800,
)  # fmt: skip
"""What a column may cover, in seconds. Each is whole in cells of 1, 10 or 300 s."""
KEPT_S: Final[Mapping[int, int]] = {1: 2 * 3600, 10: 30 * 86400, 300: 396 * 86400}
"""Seconds that a stored cell covers → how long it is kept (`pool/telemetry/partitions.py`)."""
ENOUGH_SAMPLES: Final[Mapping[float, int]] = {0.5: 2, 0.95: 20, 0.99: 100}
"""Quantile → samples from which on it is more than the largest value that happened to be seen: 1 ÷ (1 − quantile)."""
_PER_ROW: Final = (1, 2, 3, 5, 10, 15, 30)
"""With 15 the whole histogram is 59 rows, with 30 it is 30."""
_FEWEST_ROWS: Final = 24
_MOVES_BY: Final = 4
"""Rows by which the axis grows at either end."""


class InvalidRange(PoolError):
    code: ClassVar[str] = "invalid"


@dataclass(frozen=True, slots=True)
class Columns:
    """`count` columns of `step_s` seconds each from `start` on, read from cells of `resolution_s` seconds."""

    start: datetime
    step_s: int
    resolution_s: int
    count: int

    @property
    def end(self) -> datetime:
        return self.start + timedelta(seconds=self.step_s * self.count)

    def column_of(self, at: datetime) -> int | None:
        """None outside."""
        column = (at - self.start) // timedelta(seconds=self.step_s)
        return column if 0 <= column < self.count else None


def choose_columns(
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    step_s: int | None = None,
    largest: int = LARGEST_COLUMNS,
) -> Columns:
    """The finest columns that are at most `largest` and whose cells are still kept at `start`.

    A range that is no multiple of the step is widened at its end, and cut at its start where it would have one
    column too many. Raises InvalidRange.
    """
    _check_range(start, end, now)
    range_s = (end - start).total_seconds()
    steps = [step for step in STEPS_S if step * largest >= range_s and _is_kept(step, start, now)]
    if not steps:
        raise InvalidRange(
            f"The range is longer than {largest} columns of {STEPS_S[-1] // 3600} h. Ask for a shorter one.",
            largest_s=largest * STEPS_S[-1],
        )
    if step_s is not None and step_s not in steps:
        raise InvalidRange(
            f"A step of {step_s} s does not go with this range: it would have more than {largest} columns, or its "
            f"cells are no longer kept. Take one of {', '.join(str(step) for step in steps)}.",
            steps_s=steps,
        )
    return _align(start, end, step_s or steps[0], largest)


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows of `per_row` histogram buckets each, from bucket `first` on; edges are edges of buckets, so that
    nothing is counted in part. The last row of all also holds what took an hour and more."""

    first: int
    per_row: int
    count: int

    def row_of(self, bucket: int) -> int | None:
        """None outside."""
        row = (bucket - self.first) // self.per_row
        return row if 0 <= row < self.count else None

    def edges_s(self) -> tuple[float, ...]:
        """`count` + 1 of them, rising. The lowest edge of all stands for 0."""
        return tuple(
            LOWEST_S * GAMMA ** (self.first + row * self.per_row - 1) for row in range(self.count + 1)
        )

    def with_top(self) -> bool:
        """Whether the last row holds what took longer than the histogram tells apart ("> 1 h", FC-62)."""
        return self.first + self.per_row * self.count > LAST_BUCKET


def choose_rows(lowest: int, highest: int, *, largest: int = LARGEST_ROWS) -> Rows:
    """The finest rows that hold the buckets from `lowest` to `highest` and some room around them, so that the axis of
    a live view moves seldom."""
    per_row = next(
        (size for size in _PER_ROW if highest + 1 - lowest <= size * (largest - 2 * _MOVES_BY - 2)), None
    )
    if per_row is None:
        per_row = next((size for size in _PER_ROW if size * largest > LAST_BUCKET), _PER_ROW[-1])
    rows = LAST_BUCKET // per_row + 1
    low = max(0, (lowest // per_row - 1) // _MOVES_BY * _MOVES_BY)
    high = min(rows, -(-(highest // per_row + 2) // _MOVES_BY) * _MOVES_BY)
    while high - low < _FEWEST_ROWS and (low > 0 or high < rows):
        low, high = max(0, low - _MOVES_BY), min(rows, high + _MOVES_BY)
    return Rows(low * per_row, per_row, high - low)


def is_beyond_top(seconds: float | None) -> bool:
    """Whether a quantile lies in the last bucket: all that is known of it is that it took at least an hour."""
    return seconds is not None and seconds > HIGHEST_S / GAMMA


def _check_range(start: datetime, end: datetime, now: datetime) -> None:
    if end <= start:
        raise InvalidRange("The range ends before it begins. Swap `from` and `to`.")
    if start > now:
        raise InvalidRange("The range lies in the future. Choose an earlier `from`.")
    if (now - start).total_seconds() > KEPT_S[300]:
        raise InvalidRange(
            f"Cells are kept for {KEPT_S[300] // 86400} days. Choose a later `from`.", kept_s=KEPT_S[300]
        )


def _is_kept(step_s: int, start: datetime, now: datetime) -> bool:
    return (now - start).total_seconds() <= KEPT_S[_resolution_of(step_s)]


def _resolution_of(step_s: int) -> int:
    return max(resolution for resolution in KEPT_S if step_s % resolution == 0)


def _align(start: datetime, end: datetime, step_s: int, largest: int) -> Columns:
    first = int(start.timestamp() // step_s)
    last = -int(-end.timestamp() // step_s)
    count = min(last - first, largest)
    return Columns(
        start=datetime.fromtimestamp((last - count) * step_s, tz=UTC),
        step_s=step_s,
        resolution_s=_resolution_of(step_s),
        count=count,
    )
