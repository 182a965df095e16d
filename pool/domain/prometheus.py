"""Prometheus' text format, version 0.0.4: a page is filled value by value and rendered whole.

What was not measured is not on the page: no NaN, no 0 in its place. Names are those of `domain/metric_names.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pool.domain.metric_names import METRICS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STEP_BOUNDS_S: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 120.0,
)  # fmt: skip
"""From a small GPU's decode step to a long prompt's prefill on a CPU."""
DELAY_BOUNDS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip


@dataclass
class ClassicHistogram:
    """Counts by upper bound, from the start of its process on. A value equal to a bound counts under it."""

    bounds_s: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds_s) + 1)

    def observe_many(self, values_s: Iterable[float]) -> None:
        """Negative, infinite and NaN values are no times and are left out."""
        counts, bounds = self.counts, self.bounds_s
        for value in values_s:
            if 0 <= value < math.inf:
                counts[bisect_left(bounds, value)] += 1
                self.sum_s += value


@dataclass
class Page:
    """One answer to a scrape. `labels` stand on every series of it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    _families: dict[str, list[str]] = field(default_factory=dict)

    def set(self, name: str, value: float | None, /, **labels: object) -> None:
        """A gauge's value, or what a counter has reached. None and what is not finite: the series is absent."""
        assert METRICS[name].kind != "histogram", name
        if value is not None and math.isfinite(value):
            line = f"{name}{self._join(labels)} {_number(value)}"
            self._families.setdefault(name, []).append(line)

    def set_histogram(self, name: str, histogram: ClassicHistogram, /, **labels: object) -> None:
        assert METRICS[name].kind == "histogram", name
        lines = self._families.setdefault(name, [])
        total = 0
        for bound, count in zip((*histogram.bounds_s, math.inf), histogram.counts, strict=True):
            total += count
            lines.append(f"{name}_bucket{self._join({**labels, 'le': _bound(bound)})} {total}")
        lines.append(f"{name}_sum{self._join(labels)} {_number(histogram.sum_s)}")
        lines.append(f"{name}_count{self._join(labels)} {total}")

    def render(self) -> str:
        lines = []
        for name, found in self._families.items():
            metric = METRICS[name]
            lines += [f"# HELP {name} {_escape_help(metric.text)}", f"# TYPE {name} {metric.kind}", *found]
        return "\n".join([*lines, ""])

    def _join(self, labels: Mapping[str, object]) -> str:
        pairs = ",".join(
            f'{name}="{_escape(str(value))}"' for name, value in {**self.labels, **labels}.items()
        )
        return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def _bound(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
