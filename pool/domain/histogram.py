"""Log-spaced histogram of times: at most 1 % relative error from 0.1 ms to 1 h, exact to merge and to subtract.

The mapping is that of DDSketch (Masson, Rim and Lee, VLDB 2019) with gamma = 1.02.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Final

GAMMA: Final = 1.02
LOWEST_S: Final = 1e-4
HIGHEST_S: Final = 3600.0
_LOG_GAMMA: Final = math.log(GAMMA)
LAST_BUCKET: Final = math.ceil(math.log(HIGHEST_S / LOWEST_S) / _LOG_GAMMA)
FORMAT = 2
_HEAD = struct.Struct("<Bq")
_PAIR = struct.Struct("<HI")
HEAD_BYTES, PAIR_BYTES = _HEAD.size, _PAIR.size


@lru_cache(maxsize=LAST_BUCKET + 2)
def _packer(buckets: int) -> struct.Struct:
    return struct.Struct("<Bq" + "HI" * buckets)


def bucket_of(seconds: float) -> int:
    """0 holds everything up to 0.1 ms, LAST_BUCKET everything from 1 h."""
    if seconds <= LOWEST_S:
        return 0
    bucket = math.ceil(math.log(seconds / LOWEST_S) / _LOG_GAMMA)
    return bucket if bucket < LAST_BUCKET else LAST_BUCKET


def value_of(bucket: int) -> float:
    """The value that is off by at most 1 % from everything in the bucket, in seconds."""
    return LOWEST_S * GAMMA**bucket * 2 / (1 + GAMMA)


@dataclass
class Histogram:
    """Counts by bucket. `sum_s` is exact; it is what a mean is made from."""

    counts: dict[int, int] = field(default_factory=dict)
    sum_s: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Histogram:
        made = cls()
        for value in values:
            made.add(value)
        return made

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def add(self, seconds: float, times: int = 1) -> None:
        """Raises ValueError for NaN, infinite and negative values: they are no times."""
        if not (0 <= seconds < math.inf):
            raise ValueError(f"{seconds} is no length of time")
        bucket = bucket_of(seconds)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.sum_s += seconds * times

    def merge(self, other: Histogram) -> Histogram:
        counts = dict(self.counts)
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        return Histogram(counts, self.sum_s + other.sum_s)

    def absorb(self, other: Histogram) -> None:
        """Adds the other's counts to this one, in place."""
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.sum_s += other.sum_s

    def copy(self) -> Histogram:
        return Histogram(self.counts.copy(), self.sum_s)

    def subtract(self, earlier: Histogram) -> Histogram:
        """What came since `earlier`, a former state of this histogram. Raises ValueError if it was none."""
        counts = dict(self.counts)
        for bucket, count in earlier.counts.items():
            counts[bucket] = counts.get(bucket, 0) - count
        if any(count < 0 for count in counts.values()):
            raise ValueError("the histogram to subtract is no former state of this one")
        return Histogram({b: c for b, c in counts.items() if c}, self.sum_s - earlier.sum_s)

    def quantile(self, share: float) -> float | None:
        """The value below which `share` (0 to 1) of the samples lie, in seconds; None without samples."""
        total = self.count
        if total == 0:
            return None
        rank = min(total - 1, max(0, math.ceil(share * total) - 1))
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank < 0:
                return value_of(bucket)
        raise AssertionError("the ranks cover all counts")

    def to_bytes(self) -> bytes:
        """Format, sum in microseconds, then bucket and count of each bucket that is not empty, in order.

        Fixed widths, so that thousands of them are added up as arrays (`pool/queries/histograms.py`).
        """
        pairs = sorted(self.counts.items())
        return _packer(len(pairs)).pack(FORMAT, round(self.sum_s * 1e6), *chain.from_iterable(pairs))

    @classmethod
    def from_bytes(cls, content: bytes) -> Histogram:
        """Raises ValueError for bytes that no histogram wrote."""
        if len(content) < HEAD_BYTES or content[0] != FORMAT:
            raise ValueError("these bytes are no histogram of this format")
        if (len(content) - HEAD_BYTES) % PAIR_BYTES:
            raise ValueError("the histogram's bytes are cut")
        counts = dict(_PAIR.iter_unpack(content[HEAD_BYTES:]))
        if counts and max(counts) > LAST_BUCKET:
            raise ValueError(f"bucket {max(counts)} is beyond the last one")
        return cls(counts, _HEAD.unpack_from(content)[1] / 1e6)
