"""The gateway's counters and histograms, their merge over processes, and Prometheus' text format."""

import os
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

# Up to 30 minutes, so that a slow answer is never folded into the last bucket of a minute.
BUCKETS_S = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0,
    5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
# A process that has not written for so long is gone; what it counted is gone with it, like at a restart.
_FRESH_S = 30.0

Labels = tuple[str, str, str, str]
"""model, release, lane, tier."""


class Histogram:
    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, value_s)] += 1
        self.sum_s += value_s

    def add(self, counts: Iterable[int], sum_s: float) -> None:
        self.counts = [mine + other for mine, other in zip(self.counts, counts, strict=True)]
        self.sum_s += sum_s


class Series:
    """All that is counted for one model, release, lane and tier."""

    __slots__ = ("e2e", "in_flight", "outcomes", "ttft")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.ttft = Histogram()
        self.e2e = Histogram()
        self.in_flight = 0

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class Metrics:
    def __init__(self) -> None:
        self._series: dict[Labels, Series] = {}
        self.table_version = 0
        self.facts_dropped = 0

    def series(self, labels: Labels) -> Series:
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = Series()
        return found

    def snapshot(self) -> bytes:
        return orjson.dumps(
            {
                "series": [
                    [labels, one.outcomes, one.ttft.counts, one.ttft.sum_s, one.e2e.counts, one.e2e.sum_s,
                     one.in_flight]
                    for labels, one in self._series.items()
                ],
                "table_version": self.table_version,
                "facts_dropped": self.facts_dropped,
            }
        )  # fmt: skip

    def add(self, snapshot: dict[str, Any]) -> None:
        """Sums another process' counts into these; of the table's version the lowest counts."""
        for labels, outcomes, ttft, ttft_sum_s, e2e, e2e_sum_s, in_flight in snapshot["series"]:
            series = self.series(tuple(labels))
            for outcome, count in outcomes.items():
                series.outcomes[outcome] = series.outcomes.get(outcome, 0) + count
            series.ttft.add(ttft, ttft_sum_s)
            series.e2e.add(e2e, e2e_sum_s)
            series.in_flight += in_flight
        self.table_version = min(self.table_version, snapshot["table_version"])
        self.facts_dropped += snapshot["facts_dropped"]

    def render(self) -> bytes:
        lines: list[str] = ["# TYPE sluice_requests_total counter"]
        for labels, series in self._series.items():
            for outcome, count in series.outcomes.items():
                lines.append(f'sluice_requests_total{{{_join(labels)},outcome="{outcome}"}} {count}')
        for name in ("ttft", "e2e"):
            lines.append(f"# TYPE sluice_{name}_seconds histogram")
            for labels, series in self._series.items():
                lines += _histogram_lines(f"sluice_{name}_seconds", _join(labels), getattr(series, name))
        lines.append("# TYPE sluice_in_flight gauge")
        lines += [f"sluice_in_flight{{{_join(key)}}} {one.in_flight}" for key, one in self._series.items()]
        lines += ["# TYPE sluice_routing_table_version gauge"]
        lines += [f"sluice_routing_table_version {self.table_version}"]
        lines += ["# TYPE sluice_facts_dropped_total counter"]
        lines += [f"sluice_facts_dropped_total {self.facts_dropped}", ""]
        return "\n".join(lines).encode()


def merge_host(own: Metrics, folder: Path, *, worker: int, now_s: float) -> Metrics:
    """The counts of all gateway processes of this host; the others' from the files that they write."""
    merged = Metrics()
    merged.table_version = own.table_version
    merged.add(orjson.loads(own.snapshot()))
    for path in folder.glob("metrics-*.json"):
        if path.name == f"metrics-{worker}.json":
            continue
        try:
            if path.stat().st_mtime > now_s - _FRESH_S:
                merged.add(orjson.loads(path.read_bytes()))
        except (OSError, orjson.JSONDecodeError):
            continue  # Being replaced, or left half written by a full disk.
    return merged


def write_snapshot(own: Metrics, folder: Path, *, worker: int) -> None:
    path = folder / f"metrics-{worker}.json"
    part = path.with_suffix(".part")
    part.write_bytes(own.snapshot())
    os.replace(part, path)


def _histogram_lines(name: str, labels: str, histogram: Histogram) -> list[str]:
    lines, total = [], 0
    for bound, count in zip((*BUCKETS_S, "+Inf"), histogram.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
    return [*lines, f"{name}_sum{{{labels}}} {histogram.sum_s:.6f}", f"{name}_count{{{labels}}} {total}"]


def _join(labels: Labels) -> str:
    pairs = zip(("model", "release", "lane", "tier"), labels, strict=True)
    return ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
