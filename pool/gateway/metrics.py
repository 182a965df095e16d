"""The gateway's counters and histograms, their merge over processes, and Prometheus' text format."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
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

HISTOGRAMS = ("ttft", "itl", "queue_delay", "e2e")
COUNTERS = {
    "sluice_refusals_total": "Requests that were refused, by the code that the client got.",
    "sluice_retries_total": "Requests that were sent to another replica, by the failure of the first.",
    "sluice_answer_cache_total": "Deterministic requests that the answer cache was asked for, by result.",
    "sluice_affinity_expected_tokens_total": "Prompt tokens that the gateway expected in a replica's prefix cache.",
    "sluice_affinity_cached_tokens_total": "Prompt tokens that the engines found in their prefix cache.",
    "sluice_reader_timeouts_total": "Exact token counts that came too late; the estimate was used.",
    "sluice_reader_restarts_total": "Reader processes that ended and were started again.",
    "sluice_received_bytes_total": "Bytes of request bodies.",
    "sluice_sent_bytes_total": "Bytes of engines' answers that went to clients.",
    "sluice_streams_total": "Streams that began.",
    "sluice_streams_interrupted_total": "Streams that began and were cut by a failure.",
    "sluice_streams_late_total": "Streams with several late gaps in a row.",
    "sluice_tcp_retransmits_total": "Segments that were sent again to clients.",
    "sluice_shadow_requests_total": "Requests that were sent a second time to a shadow release, by outcome.",
    "sluice_usage_overflow_total": "Requests whose usage was counted under no key: too many keys and models a day.",
    "sluice_texts_dropped_total": "Texts of keys that keep them, lost because they came too fast.",
    "sluice_shadow_tokens_total": "Prompt and output tokens of shadow requests.",
}
GAUGES: dict[str, tuple[str, Callable[[tuple[float, float]], float]]] = {
    "sluice_queued": ("Requests that wait for a slot.", sum),
    "sluice_facts_queued": ("Request records that telemetry has not got yet.", sum),
    "sluice_lane_limit": ("Requests at once that admission lets into the lane.", sum),
    "pending_requests_growth_ratio": ("Growth of waiting requests over ten minutes.", max),
    "sluice_breaker_open": ("1 while a replica gets no ordinary request.", max),
    "sluice_loop_lag_seconds": ("The longest that the event loop was late, since the last look.", max),
    "sluice_degraded": ("1 while a part works without what it needs, by part.", max),
}
"""How it is put together over the processes of a host: by sum, or the largest."""


class Histogram:
    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, value_s)] += 1
        self.sum_s += value_s

    def observe_many(self, values_s: list[float]) -> None:
        """Sorts them: for many values a walk over the bounds costs less than a search for each."""
        values_s.sort()
        counts, start, total = self.counts, 0, len(values_s)
        number = bisect_left(BUCKETS_S, values_s[0]) if total else 0
        while start < total:
            end = bisect_right(values_s, BUCKETS_S[number], start) if number < len(BUCKETS_S) else total
            counts[number] += end - start
            start = end
            number += 1
        self.sum_s += sum(values_s)

    def add(self, counts: Iterable[int], sum_s: float) -> None:
        self.counts = [mine + other for mine, other in zip(self.counts, counts, strict=True)]
        self.sum_s += sum_s


class Value:
    """One counter or gauge. Who counts keeps the object, and changes `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0.0


class Series:
    """All that is counted for one model, release, lane and tier."""

    __slots__ = ("e2e", "in_flight", "itl", "outcomes", "queue_delay", "ttft")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.ttft = Histogram()
        self.itl = Histogram()
        self.queue_delay = Histogram()
        self.e2e = Histogram()
        self.in_flight = 0

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class Metrics:
    def __init__(self) -> None:
        self._series: dict[Labels, Series] = {}
        self._values: dict[tuple[str, str], Value] = {}
        self.table_version = 0
        self.facts_dropped = 0

    def series(self, labels: Labels) -> Series:
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = Series()
        return found

    def count_outcome(self, model: str, outcome: str) -> int:
        """Of this process, over all releases, lanes and tiers."""
        return sum(
            series.outcomes.get(outcome, 0) for labels, series in self._series.items() if labels[0] == model
        )

    def counter(self, name: str, **labels: str) -> Value:
        """One of COUNTERS; the same object for the same labels."""
        assert name in COUNTERS, name
        return self._find_value(name, _join(labels.items()))

    def gauge(self, name: str, **labels: str) -> Value:
        """One of GAUGES. What no longer exists is to be taken out by `forget_gauges`."""
        assert name in GAUGES, name
        return self._find_value(name, _join(labels.items()))

    def forget_gauges(self, names: frozenset[str]) -> None:
        """With all their labels, to be set anew."""
        self._values = {key: value for key, value in self._values.items() if key[0] not in names}

    def _find_value(self, name: str, labels: str) -> Value:
        found = self._values.get((name, labels))
        if found is None:
            found = self._values[name, labels] = Value()
        return found

    def snapshot(self) -> bytes:
        return orjson.dumps(
            {
                "series": [
                    [labels, one.outcomes, one.in_flight, *_dump_histograms(one)]
                    for labels, one in self._series.items()
                ],
                "values": [[name, labels, one.value] for (name, labels), one in self._values.items()],
                "table_version": self.table_version,
                "facts_dropped": self.facts_dropped,
            }
        )

    def add(self, snapshot: dict[str, Any]) -> None:
        """Sums another process' counts into these; of the table's version the lowest counts.

        Raises ValueError, KeyError or TypeError for one of another shape.
        """
        for labels, outcomes, in_flight, *histograms in snapshot["series"]:
            series = self.series(tuple(labels))
            for outcome, count in outcomes.items():
                series.outcomes[outcome] = series.outcomes.get(outcome, 0) + count
            for name, (counts, sum_s) in zip(HISTOGRAMS, histograms, strict=True):
                getattr(series, name).add(counts, sum_s)
            series.in_flight += in_flight
        for name, labels, value in snapshot["values"]:
            mine = self._find_value(name, labels)
            merge = GAUGES[name][1] if name in GAUGES else sum
            mine.value = merge((mine.value, value))
        self.table_version = min(self.table_version, snapshot["table_version"])
        self.facts_dropped += snapshot["facts_dropped"]

    def render(self) -> bytes:
        lines: list[str] = ["# TYPE sluice_requests_total counter"]
        for labels, series in self._series.items():
            for outcome, count in series.outcomes.items():
                lines.append(
                    f'sluice_requests_total{{{_join_fixed(labels)},outcome="{_escape(outcome)}"}} {count}'
                )
        for name in HISTOGRAMS:
            lines.append(f"# TYPE sluice_{name}_seconds histogram")
            for labels, series in self._series.items():
                lines += _histogram_lines(
                    f"sluice_{name}_seconds", _join_fixed(labels), getattr(series, name)
                )
        lines.append("# TYPE sluice_in_flight gauge")
        lines += [
            f"sluice_in_flight{{{_join_fixed(key)}}} {one.in_flight}" for key, one in self._series.items()
        ]
        lines += self._value_lines()
        lines += ["# TYPE sluice_routing_table_version gauge"]
        lines += [f"sluice_routing_table_version {self.table_version}"]
        lines += ["# TYPE sluice_facts_dropped_total counter"]
        lines += [f"sluice_facts_dropped_total {self.facts_dropped}", ""]
        return "\n".join(lines).encode()

    def _value_lines(self) -> list[str]:
        lines = []
        for name in sorted({name for name, _ in self._values}):
            text, kind = (GAUGES[name][0], "gauge") if name in GAUGES else (COUNTERS[name], "counter")
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for (found, labels), one in self._values.items():
                if found == name:
                    lines.append(f"{name}{{{labels}}} {one.value}" if labels else f"{name} {one.value}")
        return lines


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
        except (OSError, ValueError, KeyError, TypeError):
            continue  # Being replaced, left half written by a full disk, or written by another version.
    return merged


def write_snapshot(own: Metrics, folder: Path, *, worker: int) -> None:
    path = folder / f"metrics-{worker}.json"
    part = path.with_suffix(".part")
    part.write_bytes(own.snapshot())
    os.replace(part, path)


def _dump_histograms(series: Series) -> list[tuple[list[int], float]]:
    return [(one.counts, one.sum_s) for one in (series.ttft, series.itl, series.queue_delay, series.e2e)]


def _histogram_lines(name: str, labels: str, histogram: Histogram) -> list[str]:
    lines, total = [], 0
    for bound, count in zip((*BUCKETS_S, "+Inf"), histogram.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
    return [*lines, f"{name}_sum{{{labels}}} {histogram.sum_s:.6f}", f"{name}_count{{{labels}}} {total}"]


def _join_fixed(labels: Labels) -> str:
    return _join(zip(("model", "release", "lane", "tier"), labels, strict=True))


def _join(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
