"""What a gate shows beside its evidence: samples, medians and shares of both releases, cold ones apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pool.domain.comparison import SHAPE_FLAGS
from pool.domain.gates import RATES
from pool.domain.histogram import Histogram, value_of
from pool.domain.strata import Sample

SIDES = ("candidate", "stable", "candidate_cold", "stable_cold")


@dataclass(slots=True)
class Side:
    """`wrong`: of a rate; of shape, answers with any flag. `times`: seconds; of shape, thousands of tokens."""

    samples: int = 0
    wrong: int = 0
    times: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class Figures:
    """Of one gate since the rollout began."""

    sides: dict[str, Side] = field(default_factory=lambda: {name: Side() for name in SIDES})

    def add(self, gate: str, sample: Sample, values: Sequence[float]) -> None:
        """`values`: what `comparison.read_values` reads of the sample for this gate."""
        name = ("candidate" if sample.candidate else "stable") + ("_cold" if sample.cold else "")
        side = self.sides[name]
        side.samples += 1
        if gate == "shape":
            side.wrong += any(values[: len(SHAPE_FLAGS)])
            side.times.add(values[-1] / 1000)
        elif gate in RATES:
            side.wrong += any(values)
        else:
            side.times.add(values[0])

    def as_json(self) -> dict[str, Any]:
        """`{side: {samples, ratio?, p50?}}`, None where nothing was measured."""
        return {name: _show(side) for name, side in self.sides.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            name: [side.samples, side.wrong, side.times.sum_s, side.times.counts]
            for name, side in self.sides.items()
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Figures:
        made = cls()
        for name, (samples, wrong, total, counts) in written.items():
            times = Histogram({int(bucket): count for bucket, count in counts.items()}, total)
            made.sides[name] = Side(samples, wrong, times)
        return made


def _show(side: Side) -> dict[str, Any]:
    return {
        "samples": side.samples,
        "ratio": round(side.wrong / side.samples, 5) if side.samples else None,
        "p50_s": _find_median(side.times),
    }


def _find_median(times: Histogram) -> float | None:
    """Lower median to 1 %; None without samples."""
    count, seen = times.count, 0
    for bucket in sorted(times.counts):
        seen += times.counts[bucket]
        if 2 * seen >= count:
            return float(f"{value_of(bucket):.3g}")
    return None
