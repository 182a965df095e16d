"""Rules on memory, load and the shape of latency: each with its numbers, its level and what to do about it.

Numbers are those of the defaults (docs/slo.md, "Rules"); an operator may change them, with an audit row. Golden rules
have the level `plan`: they never act.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Final

from pool.domain.alerting import LEVELS, Level, Limits, Reading
from pool.domain.errors import PoolError
from pool.domain.histogram import Histogram
from pool.domain.ladder import Step

GOLDEN_SAMPLES: Final = 500
PREFIX_SAMPLES: Final = 100_000
"""Prompt tokens within ten minutes."""
HOT_HIT_RATIO: Final = 0.3
"""A lane whose prompts share less is not hot: there is nothing to hit."""
ALLOCATOR_FLOOR_BYTES: Final = 1024**3
"""Below this much reserved memory the allocator's ratio says nothing."""


class InvalidRule(PoolError):
    """`details.field` names what is wrong."""

    code: ClassVar[str] = "invalid_rule"


@dataclass(frozen=True, slots=True)
class Rule:
    """`subject`: what each alert of it is about: `lane`, `model`, `replica`, `device` or `pool`."""

    name: str
    subject: str
    unit: str
    """`ratio`, `s`, `replicas`: how pages write its value."""
    limits: Limits
    min_samples: int = 1
    is_golden: bool = False
    steps: Mapping[Level, tuple[Step, ...]] | None = None
    """What gates do at a level, besides telling."""


def _hold(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


RULES: Final[Mapping[str, Rule]] = {
    rule.name: rule
    for rule in (
        Rule("p99_over_p50", "lane", "ratio", Limits({Level.PLAN: 3.0}, enter_hold=_hold(600), exit_hold=_hold(600)),
             GOLDEN_SAMPLES, is_golden=True),
        Rule("p99_over_p95", "lane", "ratio", Limits({Level.PLAN: 1.5}, enter_hold=_hold(600), exit_hold=_hold(600)),
             GOLDEN_SAMPLES, is_golden=True),
        Rule("p50_over_last_week", "lane", "ratio",
             Limits({Level.PLAN: 1.1}, exit_below_ratio=0.05, enter_hold=_hold(600), exit_hold=_hold(600)),
             GOLDEN_SAMPLES, is_golden=True),
        Rule("allocator_fragmentation", "replica", "ratio",
             Limits({Level.YELLOW: 0.15, Level.ORANGE: 0.25, Level.RED: 0.30}, enter_hold=_hold(300)),
             steps={Level.ORANGE: (Step.NO_LONG,), Level.RED: (Step.RESTART,)}),
        Rule("kv_tail", "replica", "ratio", Limits({Level.PLAN: 0.25}, enter_hold=_hold(300), exit_hold=_hold(300))),
        Rule("kv_in_use", "replica", "ratio",
             Limits({Level.YELLOW: 0.70, Level.ORANGE: 0.85, Level.RED: 0.95}, exit_below_ratio=0.0, exit_below=0.05)),
        Rule("foreign_memory", "device", "ratio", Limits({Level.YELLOW: 0.05, Level.ORANGE: 0.15})),
        Rule("prefix_misses", "lane", "ratio", Limits({Level.PLAN: 0.15}, enter_hold=_hold(600), exit_hold=_hold(600)),
             PREFIX_SAMPLES),
        Rule("long_share", "model", "ratio",
             Limits({Level.YELLOW: 0.15, Level.ORANGE: 0.20}, enter_hold=_hold(300), exit_hold=_hold(300)), 200,
             steps={Level.ORANGE: (Step.SCALE_OUT,)}),
        Rule("reduced_capacity", "model", "replicas",
             Limits({Level.YELLOW: 1.0}, exit_below_ratio=0.5, enter_hold=_hold(180), exit_hold=_hold(5))),
        Rule("nodes_silent", "pool", "ratio", Limits({Level.ORANGE: 0.5}, enter_hold=_hold(15), exit_hold=_hold(15))),
        Rule("busy_and_late", "device", "ratio", Limits({Level.ORANGE: 0.95}),
             steps={Level.ORANGE: (Step.ADMISSION_RATIO,)}),
    )
}  # fmt: skip
"""`foreign_memory`: of the device's total. `prefix_misses`: tokens that a lane with prefix caching had to compute, so
over 15 % is a hit ratio under 85 %. `long_share`: requests over 8,192 prompt tokens; over 20 % is a reason to add
replicas. `nodes_silent`: from here on nothing of a lost node is started elsewhere (FC-21). `busy_and_late`: use of the
device over 30 s, read as 0 unless a lane on it is over its TTFT target."""


def read_rule(rule: Rule, stored: Mapping[str, Any]) -> Rule:
    """With an operator's own limits: `{"enter": {"yellow": 0.7}, "enter_hold_s": 30}`. Raises InvalidRule."""
    limits = rule.limits
    for name, value in stored.items():
        if name == "enter":
            limits = replace(limits, enter=_read_enter(rule, value))
        elif name in ("enter_hold_s", "exit_hold_s", "cool_down_s"):
            lengths: dict[str, Any] = {name.removesuffix("_s"): timedelta(seconds=_number(name, value))}
            limits = replace(limits, **lengths)
        elif name != "off":
            raise InvalidRule(f"A rule has no setting {name!r}.", field=name)
    return replace(rule, limits=limits)


def read_ratio(histogram: Histogram, upper: float, lower: float) -> Reading:
    """One quantile ÷ another, of the same merged histogram."""
    above, below, samples = histogram.quantile(upper), histogram.quantile(lower), histogram.count
    if samples < GOLDEN_SAMPLES or above is None or not below:
        return Reading(None, samples, "few" if samples else "absent")
    return Reading(above / below, samples)


def read_against(histogram: Histogram, earlier: Histogram) -> Reading:
    """The median now ÷ that of a week ago."""
    now, before, samples = histogram.quantile(0.5), earlier.quantile(0.5), min(histogram.count, earlier.count)
    if samples < GOLDEN_SAMPLES or now is None or not before:
        return Reading(None, samples, "few" if samples else "absent")
    return Reading(now / before, samples)


def read_share(part: float | None, whole: float | None, *, min_samples: int) -> Reading:
    """None = not measured: absent, not 0."""
    if part is None or whole is None or whole <= 0:
        return Reading(None, 0, "absent")
    samples = int(whole)
    return Reading(part / whole, samples, "measured" if samples >= min_samples else "few")


def _read_enter(rule: Rule, given: Any) -> Mapping[Level, float]:
    if not isinstance(given, Mapping) or not given:
        raise InvalidRule("enter names at least one level.", field="enter")
    found: dict[Level, float] = {}
    for word, value in given.items():
        level = LEVELS.get(word, Level.NORMAL)
        if level is Level.NORMAL or (rule.is_golden and level is not Level.PLAN):
            raise InvalidRule(f"The rule {rule.name} has no level {word!r}.", field="enter")
        found[level] = _number("enter", value)
    ordered = [found[level] for level in sorted(found)]
    if ordered != sorted(set(ordered)):
        raise InvalidRule("The limits rise with the level.", field="enter")
    return found


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRule(f"{name} is a number.", field=name)
    if not 0 <= value <= 86_400:
        raise InvalidRule(f"{name} is between 0 and 86,400.", field=name)
    return float(value)
