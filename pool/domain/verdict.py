"""Candidate against stable: what all gates say together, and when the next thing may be said. Pure.

`docs/verdict.md` has the method. The evidence changes at the end of a block only; reading it in between, however
often, sees the same value, and is what the error rates are promised for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pool.domain.comparison import Comparison, read_values
from pool.domain.fixed_limits import LimitTest
from pool.domain.gate_figures import Figures
from pool.domain.gates import ALPHA, GATES, LIMIT_SHARE, GateSetting, GateSettings, read_gates
from pool.domain.rollout import Judgement
from pool.domain.strata import BLOCK_S, Sample

__all__ = ["GATES", "GateOutcome", "GateSettings", "Reading", "Sample", "Verdict", "read_gates"]

FAIR_BAR: Final = -math.log(ALPHA)
_DOUBT: Final = math.log(5.0)
"""Evidence of worse from which "not worse" waits, whatever was shown before."""
_LEAST_MATCHED: Final = 0.5
FORMAT: Final = 1


@dataclass(frozen=True)
class GateOutcome:
    """`figures`: samples, medians (seconds, tokens or shares; None without samples), design effect, matched ratio,
    `more_requests` and `more_minutes` (None: nothing points there yet), limit."""

    gate: str
    outcome: Judgement
    worse_log: float
    worse_bar: float
    not_worse_log: float
    not_worse_bar: float
    dry_run: bool
    broken_limit: str
    text: str
    figures: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        written = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**written, "outcome": self.outcome.value, "figures": dict(self.figures)}


@dataclass(frozen=True)
class Reading:
    """`judgement`: of the gates that act. `broken_limit`: empty, or which fixed limit the candidate passes."""

    judgement: Judgement
    text: str
    broken_limit: str
    gates: tuple[GateOutcome, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "judgement": self.judgement.value,
            "text": self.text,
            "broken_limit": self.broken_limit,
            "gates": [gate.as_json() for gate in self.gates],
        }


@dataclass
class Verdict:
    """The running state of one rollout's gates. `lanes`: of the model, as they were when it began."""

    settings: GateSettings = field(default_factory=GateSettings)
    lanes: tuple[str, ...] = ()
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    limits: dict[str, LimitTest] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)
    step: int = 0
    blocks: int = 0
    """Since the step began, those with requests."""
    requests: int = 0
    """Of both releases since the step began."""

    def __post_init__(self) -> None:
        for gate, setting in self.settings.by_gate.items():
            self.comparisons.setdefault(gate, Comparison.begin(gate, setting, self.lanes))
            self.figures.setdefault(gate, Figures())
            limit = _limit_of(setting)
            if limit is not None:
                self.limits.setdefault(gate, LimitTest(limit))

    def add_block(self, number: int, samples: Iterable[Sample], *, step: int = 0) -> None:
        """All requests that ended in block `number` (Unix time ÷ 10 s); numbers rise. `step`: of the rollout, then."""
        judged = list(samples)
        warm = [sample for sample in judged if not sample.cold]
        is_new_step = step != self.step
        if is_new_step:
            self.step, self.blocks, self.requests = step, 0, 0
        for gate, comparison in self.comparisons.items():
            comparison.begin_block(is_new_step=is_new_step)
            figures = self.figures[gate]
            for sample in judged:
                values = read_values(gate, sample)
                if values is None:
                    continue
                figures.add(gate, sample, values)
                if not sample.cold:
                    comparison.add(sample, values, number)
            comparison.end_block(number)
        self.blocks += bool(warm)
        self.requests += len(warm)
        self._check_limits([sample for sample in warm if sample.candidate])

    def add_counts(self, errors: int, requests: int) -> None:
        """Of the candidate, by the gateways' own counters: they come without Redis."""
        test = self.limits.get("errors")
        if test is not None:
            counted = self.limits.setdefault("errors:counters", LimitTest(test.limit))
            counted.add(min(errors, requests), requests)

    def _check_limits(self, mine: Sequence[Sample]) -> None:
        for gate, setting in self.settings.by_gate.items():
            test = self.limits.get(gate)
            if test is not None:
                test.add(*_count_wrong(gate, setting, mine))

    def read(self) -> Reading:
        gates = tuple(self._read_gate(gate) for gate in self.settings.by_gate)
        acting = [gate for gate in gates if not gate.dry_run]
        judgement = _join(acting)
        broken = "; ".join(gate.broken_limit for gate in acting if gate.broken_limit)
        said = _say([gate for gate in acting if gate.outcome is judgement])
        return Reading(judgement, said or "every gate only reports", broken, gates)

    def _read_gate(self, gate: str) -> GateOutcome:
        comparison, setting = self.comparisons[gate], self.settings.by_gate[gate]
        bar = math.log(max(1, len(self.settings.acting)) / ALPHA)
        outcome = _judge(comparison, bar)
        figures = self._gather(gate, comparison)
        return GateOutcome(
            gate=gate,
            outcome=outcome,
            worse_log=round(comparison.worse_log, 3),
            worse_bar=round(bar, 3),
            not_worse_log=round(comparison.fair_log, 3),
            not_worse_bar=round(FAIR_BAR, 3),
            dry_run=setting.dry_run,
            broken_limit=self._find_broken(gate, setting),
            text=_describe(gate, outcome, figures),
            figures=figures,
        )

    def _gather(self, gate: str, comparison: Comparison) -> dict[str, Any]:
        sets = comparison.sets
        figures = self.figures[gate].as_json()
        figures["units"] = {"candidate": sets.mine, "stable": sets.others}
        figures["matched_ratio"] = round(sets.matched / sets.mine, 3) if sets.mine else None
        figures["design_effect"] = round(comparison.effect, 2)
        figures["margin_ratio"] = comparison.setting.margin_ratio
        figures["highest_worse_log"] = round(comparison.highest_worse, 3)
        figures["more_requests"], figures["more_minutes"] = self._estimate(comparison)
        return figures

    def _estimate(self, comparison: Comparison) -> tuple[int | None, float | None]:
        """Until "not worse", if it goes on as since the step began. None: the evidence does not grow that way."""
        grown = min(one.fair.log for one in comparison.evidence)
        if comparison.fair_log >= FAIR_BAR:
            return 0, 0.0
        if grown <= 0.1 or not self.requests:
            return None, None
        more = math.ceil((FAIR_BAR - grown) / grown * self.requests)
        return more, round(more / self.requests * self.blocks * BLOCK_S / 60, 1)

    def _find_broken(self, gate: str, setting: GateSetting) -> str:
        for name in (gate, f"{gate}:counters"):
            test = self.limits.get(name)
            if test is not None and test.is_broken:
                share = f"{test.wrong} of {test.units}"
                if setting.limit_s is not None:
                    return (
                        f"{gate}: {share} of the candidate's took over {setting.limit_s:g} s (limit on P95)"
                    )
                return f"{gate}: {share} of the candidate's requests, the limit is {test.limit:.1%}"
        return ""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "settings": self.settings.as_json(),
            "lanes": list(self.lanes),
            "comparisons": {gate: one.to_json() for gate, one in self.comparisons.items()},
            "limits": {name: one.to_json() for name, one in self.limits.items()},
            "figures": {gate: one.to_json() for gate, one in self.figures.items()},
            "counts": [self.step, self.blocks, self.requests],
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Verdict:
        """Raises ValueError for a state of another format: its evidence has to be gathered anew."""
        if written.get("format") != FORMAT:
            raise ValueError("evidence of another format")
        settings = read_gates(written["settings"])
        comparisons = {
            gate: Comparison.from_json(gate, settings.by_gate[gate], one)
            for gate, one in written["comparisons"].items()
        }
        limits = {name: LimitTest.from_json(one) for name, one in written["limits"].items()}
        figures = {gate: Figures.from_json(one) for gate, one in written["figures"].items()}
        return cls(settings, tuple(written["lanes"]), comparisons, limits, figures, *written["counts"])


def _limit_of(setting: GateSetting) -> float | None:
    return LIMIT_SHARE if setting.limit_s is not None else setting.limit_ratio


def _count_wrong(gate: str, setting: GateSetting, mine: Sequence[Sample]) -> tuple[int, int]:
    """(wrong, all) of the candidate's requests in a block."""
    if gate == "errors":
        return sum(sample.error for sample in mine), len(mine)
    if gate == "interrupted":
        sent = [sample for sample in mine if sample.sent]
        return sum(sample.interrupted for sample in sent), len(sent)
    column = {"ttft": "ttft_s", "itl": "itl_s", "per_token": "per_token_s"}[gate]
    times = [value for sample in mine if sample.sent and (value := getattr(sample, column)) is not None]
    return sum(value > (setting.limit_s or 0.0) for value in times), len(times)


def _judge(comparison: Comparison, bar: float) -> Judgement:
    if comparison.highest_worse >= bar:
        return Judgement.WORSE
    sets = comparison.sets
    matched = bool(sets.mine) and sets.matched >= _LEAST_MATCHED * sets.mine
    if comparison.fair_log >= FAIR_BAR and matched and comparison.worse_log < _DOUBT:
        return Judgement.NOT_WORSE
    return Judgement.NOT_YET


def _join(acting: Sequence[GateOutcome]) -> Judgement:
    outcomes = {gate.outcome for gate in acting}
    if Judgement.WORSE in outcomes:
        return Judgement.WORSE
    return Judgement.NOT_WORSE if outcomes == {Judgement.NOT_WORSE} else Judgement.NOT_YET


def _say(gates: Sequence[GateOutcome]) -> str:
    """What several gates say in the same words is said once, for all of them."""
    names: dict[str, list[str]] = {}
    for gate in gates:
        names.setdefault(gate.text.removeprefix(f"{gate.gate}: "), []).append(gate.gate)
    return "; ".join(f"{', '.join(gates_of)}: {words}" for words, gates_of in names.items())


def _describe(gate: str, outcome: Judgement, figures: Mapping[str, Any]) -> str:
    if outcome is Judgement.WORSE:
        return f"{gate}: worse than stable"
    if outcome is Judgement.NOT_WORSE:
        return f"{gate}: not worse than stable"
    if not figures["units"]["candidate"] or not figures["units"]["stable"]:
        return f"{gate}: no requests of both releases to compare yet (a new replica's first minute is not judged)"
    if figures["matched_ratio"] < _LEAST_MATCHED:
        return f"{gate}: most of the candidate's requests have no alike ones of stable"
    if figures["more_requests"] is None:
        return f"{gate}: not yet; the evidence does not point to an end yet"
    minutes = figures["more_minutes"]
    span = "under a minute" if minutes < 1 else f"{minutes:g} min"
    return f"{gate}: not yet; about {figures['more_requests']} more requests ({span})"
