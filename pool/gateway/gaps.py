"""The gaps of one stream, sorted into the buckets of the telemetry's histograms while the numbers are at hand."""

from pool.domain.histogram import bucket_of


class Gaps:
    """Seconds between reads that brought events."""

    __slots__ = ("counts", "longest_s", "sum_s")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """Bucket → how many."""
        self.sum_s = 0.0
        self.longest_s = 0.0

    def add_sorted(self, gaps: list[float]) -> None:
        """In ascending order, at least one: neighbours share a bucket, so that a dictionary is asked for runs only."""
        counts = self.counts
        last, run, sum_s = -1, 0, 0.0
        for gap_s in gaps:
            sum_s += gap_s
            bucket = bucket_of(gap_s)
            if bucket == last:
                run += 1
            else:
                if run:
                    counts[last] = counts.get(last, 0) + run
                last, run = bucket, 1
        counts[last] = counts.get(last, 0) + run
        self.sum_s += sum_s
        self.longest_s = max(self.longest_s, gaps[-1])

    def dump(self) -> list[object]:
        """`[sum in seconds, {bucket: count}]`."""
        return [self.sum_s, self.counts]
