"""What is promised to callers: limits of one model, lane, tier and business label, and how a reading is judged.

Latency is promised on the first token (TTFT) of streams; end to end only per output token, since outputs differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from pool.domain.alerting import Level, Limits, Reading
from pool.domain.errors import PoolError
from pool.domain.histogram import Histogram, bucket_of
from pool.domain.ladder import AVAILABLE, Policy, Step

SHORT_TARGET_MS: Final = 300
"""The TTFT target of the lane that the default limits are written for; other lanes' limits are in proportion."""
PROPOSAL_SAMPLES: Final = 1000
PROPOSAL_MARGIN: Final = 1.25
"""What a proposal leaves between what was measured and what is promised."""
ALLOWED_SLOW: Final[Mapping[str, float]] = {"ttft_p50": 0.50, "ttft_p95": 0.05, "ttft_p99": 0.01}
"""The part of the requests that may be slower than the limit."""
QUANTILES: Final[Mapping[str, float]] = {"ttft_p50": 0.50, "ttft_p95": 0.95, "ttft_p99": 0.99}
SHARES: Final = ("errors", "degraded", "interrupted")
"""Promised as a part of all requests; each name is that of a count in the cells."""


class InvalidSlo(PoolError):
    """`details.field` names the first that is wrong."""

    code: ClassVar[str] = "invalid_slo"


@dataclass(frozen=True, slots=True)
class SloSettings:
    """Seconds, ratios 0 to 1. None = nothing is promised there."""

    ttft_p50_s: float | None = 0.45
    ttft_p95_s: float | None = 1.2
    ttft_p99_s: float | None = 2.0
    errors_ratio: float | None = 0.005
    degraded_ratio: float | None = 0.02
    interrupted_ratio: float | None = 0.001
    long_ttft_ratio: float | None = None
    """P99 of prompts over 8,192 tokens ÷ P99 of the others."""
    yellow_s: float | None = 1.8
    """Levels on the P99 of TTFT: an early warning,"""
    orange_s: float | None = 2.5
    """acts,"""
    red_s: float | None = 3.0
    """acts harder."""
    exit_below_ratio: float = 0.10
    enter_hold_s: float = 30.0
    exit_hold_s: float = 120.0
    cool_down_s: float = 300.0
    min_samples: int = 100
    peak_hours: tuple[int, ...] | None = None
    """Hours of the day (UTC) judged over 5 minutes instead of 15. None = learned from the traffic."""
    orange_steps: tuple[str, ...] = (Step.SHED_BATCH.value,)
    red_steps: tuple[str, ...] = (Step.NO_LONG.value, Step.ADMISSION_RATIO.value)
    max_actions_per_hour: int = 6
    opposite_after_s: float = 300.0
    dry_run: bool = False

    def limit_of(self, objective: str) -> float | None:
        value: float | None = getattr(
            self, f"{objective}_s" if objective in QUANTILES else f"{objective}_ratio"
        )
        return value

    def allowed_of(self, objective: str) -> float | None:
        """The part of the requests that may break the promise: the error budget. None = no promise."""
        limit = self.limit_of(objective)
        if limit is None:
            return None
        return ALLOWED_SLOW.get(objective, limit)

    def policy(self, held_until: datetime | None) -> Policy:
        return Policy(
            {
                Level.ORANGE: tuple(Step(name) for name in self.orange_steps),
                Level.RED: tuple(Step(name) for name in self.red_steps),
            },
            max_per_hour=self.max_actions_per_hour,
            opposite_after=timedelta(seconds=self.opposite_after_s),
            dry_run=self.dry_run,
            held_until=held_until,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted over one stretch of time, after merging."""

    requests: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    ttft: Histogram = field(default_factory=Histogram)
    long_ttft: Histogram = field(default_factory=Histogram)
    """Of prompts over 8,192 tokens, which are part of `ttft` too."""
    long_requests: int = 0


TEMPLATES: Final[Mapping[str, Mapping[str, Any]]] = {
    "interactive": {},
    "finance": {"ttft_p99_s": 1.5, "yellow_s": 1.35, "orange_s": 1.875, "red_s": 2.25},
    "report": {
        "ttft_p50_s": None, "ttft_p95_s": 3.0, "ttft_p99_s": None, "yellow_s": 4.5, "orange_s": 6.25, "red_s": 7.5,
    },
    "long_context": {"long_ttft_ratio": 1.4},
}  # fmt: skip
"""By business label: what differs from the default. `report` has no lane: it is never scaled by a target."""


def make_settings(template: str, *, ttft_target_ms: int = SHORT_TARGET_MS) -> SloSettings:
    """Raises InvalidSlo for a template that there is not."""
    if template not in TEMPLATES:
        raise _wrong("template", f"is one of {', '.join(TEMPLATES)}")
    settings = replace(SloSettings(), **TEMPLATES[template])
    if template in ("finance", "report"):
        return settings
    return scale_settings(settings, ttft_target_ms / SHORT_TARGET_MS)


def scale_settings(settings: SloSettings, factor: float) -> SloSettings:
    scaled: dict[str, Any] = {
        name: round(value * factor, 3)
        for name in (*(f"{one}_s" for one in QUANTILES), *_LEVEL_NAMES)
        if (value := getattr(settings, name)) is not None
    }
    return replace(settings, **scaled)


def propose_settings(window: Window) -> SloSettings | None:
    """From what was measured, with a margin; None below 1,000 streams. Levels lie where the defaults have them:
    0.9, 1.25 and 1.5 times the P99."""
    if window.ttft.count < PROPOSAL_SAMPLES:
        return None
    found = {name: window.ttft.quantile(share) for name, share in QUANTILES.items()}
    limits: dict[str, Any] = {
        f"{name}_s": _round_up(value * PROPOSAL_MARGIN) for name, value in found.items() if value is not None
    }
    p99_s = limits["ttft_p99_s"]
    parts = zip(_LEVEL_NAMES, (0.9, 1.25, 1.5), strict=True)
    return replace(SloSettings(), **(limits | {name: round(p99_s * part, 4) for name, part in parts}))


def read_settings(given: Mapping[str, Any]) -> SloSettings:
    """What is absent has its default. Raises InvalidSlo."""
    known = {one.name: str(one.type) for one in fields(SloSettings)}
    for name in given:
        if name not in known:
            raise _wrong(name, "is no setting of an SLO")
    settings = SloSettings(**{name: _check(name, known[name], value) for name, value in given.items()})
    _check_order(settings)
    return settings


def write_settings(settings: SloSettings) -> dict[str, Any]:
    """JSON, complete: a later default changes no promise that was made."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()
    }


def ttft_limits(settings: SloSettings) -> Limits:
    """Of the levels on P99; empty where none is set."""
    levels = (
        (Level.YELLOW, settings.yellow_s),
        (Level.ORANGE, settings.orange_s),
        (Level.RED, settings.red_s),
    )
    return hold_limits(settings, {level: limit for level, limit in levels if limit is not None})


def hold_limits(settings: SloSettings, enter: Mapping[Level, float]) -> Limits:
    return Limits(
        enter,
        exit_below_ratio=settings.exit_below_ratio,
        enter_hold=timedelta(seconds=settings.enter_hold_s),
        exit_hold=timedelta(seconds=settings.exit_hold_s),
        cool_down=timedelta(seconds=settings.cool_down_s),
    )


def choose_window(
    *, burns_fast: bool, samples_last_minute: int, is_peak: bool, min_samples: int
) -> timedelta:
    """One minute only while the budget burns fast and the minute has enough requests."""
    if burns_fast and samples_last_minute >= max(100, min_samples):
        return timedelta(minutes=1)
    return timedelta(minutes=5) if is_peak else timedelta(minutes=15)


def is_peak(hour: int, settings: SloSettings, by_hour: Sequence[float | None]) -> bool:
    """`by_hour`: mean requests of each hour of the day (UTC), None = not known yet. Learned, a peak hour has at
    least a quarter more than the mean; without a whole day of traffic every hour counts as one."""
    if settings.peak_hours is not None:
        return hour in settings.peak_hours
    known = [count for count in by_hour if count is not None]
    own = by_hour[hour]
    if len(known) < len(by_hour) or own is None:
        return True
    return own >= 1.25 * sum(known) / len(known)


def read_quantile(histogram: Histogram, share: float, *, min_samples: int) -> Reading:
    """Merged first, quantile afterwards. Too few samples are no verdict."""
    samples = histogram.count
    if samples < min_samples:
        return Reading(histogram.quantile(share), samples, "few" if samples else "absent")
    return Reading(histogram.quantile(share), samples)


def read_long_ratio(window: Window, *, min_samples: int) -> Reading:
    """How much slower the first token of a long prompt is than that of the others, both at P99."""
    others = window.ttft.subtract(window.long_ttft)
    samples = min(others.count, window.long_ttft.count)
    slow, usual = window.long_ttft.quantile(0.99), others.quantile(0.99)
    if samples < min_samples or slow is None or not usual:
        return Reading(None, samples, "few" if samples else "absent")
    return Reading(slow / usual, samples)


def count_slower(histogram: Histogram, limit_s: float) -> int:
    """Exact up to the bucket that the limit lies in, which counts as kept."""
    edge = bucket_of(limit_s)
    return sum(count for bucket, count in histogram.counts.items() if bucket > edge)


_LEVEL_NAMES: Final = ("yellow_s", "orange_s", "red_s")
_WHOLE: Final[Mapping[str, tuple[int, int]]] = {
    "min_samples": (1, 1_000_000),
    "max_actions_per_hour": (0, 60),
}
_LONGEST_S: Final = 86_400.0


def _check(name: str, kind: str, value: Any) -> Any:
    if name.endswith("_steps"):
        return _check_steps(name, value)
    if name == "peak_hours":
        return _check_hours(value)
    if kind == "bool":
        if not isinstance(value, bool):
            raise _wrong(name, "is true or false")
        return value
    return None if value is None and kind.endswith("None") else _check_number(name, value)


def _check_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(name, "is a number")
    low, high = _bounds(name)
    if not low <= value <= high:
        raise _wrong(name, f"is between {low:g} and {high:g}")
    if name in _WHOLE and value != int(value):
        raise _wrong(name, "is a whole number")
    return int(value) if name in _WHOLE else float(value)


def _bounds(name: str) -> tuple[float, float]:
    if name in _WHOLE:
        return _WHOLE[name]
    if name == "long_ttft_ratio":
        return 1.0, 1000.0
    if name == "exit_below_ratio":
        return 0.0, 0.9
    if name.endswith("_ratio"):
        return 0.000_001, 0.999
    return (0.0 if "hold" in name or name in ("cool_down_s", "opposite_after_s") else 0.001), _LONGEST_S


def _check_steps(name: str, value: Any) -> tuple[str, ...]:
    known = {step.value for step in AVAILABLE}
    steps: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(step, str) and step in known for step in steps):
        raise _wrong(name, f"is a list of {', '.join(sorted(known))}")
    return tuple(dict.fromkeys(steps))


def _check_hours(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    hours: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(hour, int) and not isinstance(hour, bool) and 0 <= hour < 24 for hour in hours):
        raise _wrong("peak_hours", "is a list of hours from 0 to 23, or null")
    return tuple(sorted(set(hours)))


def _check_order(settings: SloSettings) -> None:
    for names, may_equal in ((tuple(f"{name}_s" for name in QUANTILES), True), (_LEVEL_NAMES, False)):
        known = [(name, value) for name in names if (value := getattr(settings, name)) is not None]
        for (_, lower), (name, upper) in zip(known, known[1:], strict=False):
            if upper < lower or (upper == lower and not may_equal):
                raise _wrong(
                    name, "is not below the one before it" if may_equal else "is above the one before it"
                )


def _round_up(seconds: float) -> float:
    """To two significant digits."""
    step = 10 ** (math.floor(math.log10(max(seconds, 1e-4))) - 1)
    return float(round(math.ceil(seconds / step) * step, 6))


def _wrong(name: str, rule: str) -> InvalidSlo:
    return InvalidSlo(f"{name} {rule}.", field=name)
