"""The evidence of one gate, both ways: that the candidate is worse, and that it is not worse by the margin. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pool.domain.evalues import TILTS, log_evalues, log_rate_evalue, median_scores, rank_scores
from pool.domain.gates import RATES, TIMES, GateSetting
from pool.domain.strata import ClosedSet, Sample, Sets
from pool.domain.wealth import RATE_PRIOR, STEP_SHARE, TIME_PRIOR, DesignEffect, Wealth, add_logs

STRENGTHS: Final = (0.2, 0.6, 1.5, 4.0)
"""Of bets on a share of errors that is below the margin: the fewer errors there are, the stronger is the best."""
_SIGNED: Final = {1: TILTS, -1: tuple(-tilt for tilt in TILTS)}
_LANE_SHARE: Final = 0.35
"""Of the bet is on lanes one by one: what is slower in one lane alone shows there first."""


@dataclass(frozen=True, slots=True)
class View:
    """One question to a column of values. `kind`: rate, rank or median. `scale`: the candidate's values are multiplied
    by this before they are ranked, which takes the margin off. `sign`: 1 where high is bad."""

    name: str
    kind: str
    column: int
    scale: float = 1.0
    sign: int = 1


def list_views(gate: str, setting: GateSetting) -> tuple[View, ...]:
    longer = 1 + setting.margin_ratio
    if gate == "shape":
        rates = (View(name, "rate", place) for place, name in enumerate(SHAPE_FLAGS))
        length = len(SHAPE_FLAGS)
        return (
            *rates,
            View("longer", "rank", length, 1 / longer),
            View("shorter", "rank", length, longer, -1),
        )
    if gate in RATES:
        return (View("rate", "rate", 0),)
    return (View("times", "rank", 0, 1 / longer), View("p50", "median", 0, 1 / longer))


SHAPE_FLAGS: Final = ("empty", "repeated", "cut_by_length")


def read_values(gate: str, sample: Sample) -> tuple[float, ...] | None:
    """By column; None where the request says nothing about this gate."""
    if gate == "errors":
        return (float(sample.error),)
    if not sample.sent or (gate != "interrupted" and (sample.error or sample.interrupted)):
        return None
    if gate == "interrupted":
        return None if sample.error and not sample.interrupted else (float(sample.interrupted),)
    if gate == "shape":
        if sample.output_tokens is None:
            return None
        return (*(float(flag in sample.flags) for flag in SHAPE_FLAGS), float(sample.output_tokens))
    value = {"ttft": sample.ttft_s, "itl": sample.itl_s, "per_token": sample.per_token_s}[gate]
    return None if value is None else (value,)


def choose_stratum(gate: str, sample: Sample) -> tuple[str, ...]:
    """Lane, and what else makes requests unlike. Errors and shape know no length of the answer: there it would be what
    is judged, not what is held equal."""
    if gate in RATES:
        return (sample.lane,)
    if gate == "ttft":
        return (sample.lane, sample.cached_class)
    return (sample.lane, sample.cached_class, sample.output_class)


@dataclass(slots=True)
class ViewEvidence:
    """`worse`: over all, and by lane. `fair`: since the step began."""

    worse: Wealth = field(default_factory=Wealth.with_reserve)
    lanes: dict[str, Wealth] = field(default_factory=dict)
    fair: Wealth = field(default_factory=Wealth)
    effect: DesignEffect = field(default_factory=DesignEffect)
    highest_fair: float = 0.0
    contrast: float = 0.0
    variance: float = 0.0
    """Of the sets of this block so far."""
    slowed: float = 1.0
    """The design effect as it was known before this block."""
    is_new: bool = False
    """Whether this block brought evidence: beginning another bet alone moves nothing."""

    @property
    def worse_log(self) -> float:
        if not self.lanes:
            return self.worse.log
        part = math.log(_LANE_SHARE / len(self.lanes))
        by_lane = (lane.log + part for lane in self.lanes.values())
        return add_logs([self.worse.log + math.log(1 - _LANE_SHARE), *by_lane])

    def begin(self, share: float | None) -> None:
        self.slowed = self.effect.value
        self.is_new = False
        for one in (self.worse, *self.lanes.values(), self.fair):
            one.begin(share)

    def start_step(self) -> None:
        self.fair, self.highest_fair = Wealth(), 0.0

    def add(self, view: View, setting: GateSetting, closed: ClosedSet) -> None:
        scores = _score(view, closed)
        effect = self.slowed
        self.is_new = True
        margin = math.log1p(setting.margin_ratio) if view.kind == "rate" else 0.0
        if any(scores):
            gains = log_evalues(scores, closed.chosen, _SIGNED[view.sign], margin=margin)
            self.worse.grow(gains, effect)
            lane = self.lanes.get(closed.lane)
            if lane is not None:
                lane.grow(gains, effect)
            self._note_contrast(scores, closed.chosen)
        if view.kind == "rate":
            self._grow_fair(scores, closed.chosen, setting.margin_points or 0.0, effect)
        else:
            self.fair.grow(log_evalues(scores, closed.chosen, _SIGNED[-view.sign]), effect)

    def _grow_fair(
        self, marks: Sequence[float], chosen: Sequence[bool], points: float, effect: float
    ) -> None:
        mine = sum(chosen)
        wrong = int(sum(mark for mark, own in zip(marks, chosen, strict=True) if own))
        errors, units = (wrong, int(sum(marks)) - wrong), (mine, len(chosen) - mine)
        self.fair.grow([log_rate_evalue(errors, units, points, strength) for strength in STRENGTHS], effect)

    def _note_contrast(self, scores: Sequence[float], chosen: Sequence[bool]) -> None:
        size, count = len(scores), sum(chosen)
        if count in (0, size):
            return
        mean = sum(scores) / size
        self.contrast += sum([score - mean for score, mine in zip(scores, chosen, strict=True) if mine])
        spread = sum([(score - mean) ** 2 for score in scores])
        self.variance += count * (size - count) / (size * (size - 1)) * spread

    def end_block(self) -> None:
        if self.variance > 0:
            self.effect.add(self.contrast / math.sqrt(self.variance))
        self.contrast = self.variance = 0.0
        if self.is_new:
            self.highest_fair = max(self.highest_fair, self.fair.log)

    def to_json(self) -> dict[str, Any]:
        return {
            "worse": self.worse.to_json(),
            "lanes": {lane: one.to_json() for lane, one in self.lanes.items()},
            "fair": self.fair.to_json(),
            "effect": self.effect.to_json(),
            "highest_fair": self.highest_fair,
        }

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> ViewEvidence:
        return cls(
            Wealth.from_json(written["worse"]),
            {lane: Wealth.from_json(one) for lane, one in written["lanes"].items()},
            Wealth.from_json(written["fair"]),
            DesignEffect.from_json(written["effect"]),
            written["highest_fair"],
        )


def _score(view: View, closed: ClosedSet) -> list[float]:
    """The higher the worse, except where the view's sign is -1."""
    values = closed.columns[view.column]
    if view.kind == "rate":
        return [1.0 if value > 0 else 0.0 for value in values]
    # Few values are equal, and which of them is above then is as good as any: ranks without ties are worked out once.
    values = tuple(
        (value * view.scale if mine else value) * (1 + place * 1e-9)
        for place, (value, mine) in enumerate(zip(values, closed.chosen, strict=True))
    )
    return rank_scores(values) if view.kind == "rank" else median_scores(values)


@dataclass(slots=True)
class Comparison:
    """One gate. Samples come in by `add`; evidence changes at `end_block` or where a set is full."""

    gate: str
    setting: GateSetting
    views: tuple[View, ...]
    evidence: list[ViewEvidence]
    sets: Sets = field(default_factory=Sets)
    highest_worse: float = 0.0

    @classmethod
    def begin(cls, gate: str, setting: GateSetting, lanes: Sequence[str]) -> Comparison:
        views = list_views(gate, setting)
        own = lanes if len(lanes) > 1 else ()
        evidence = [
            ViewEvidence(
                lanes={lane: Wealth.with_reserve() for lane in own},
                effect=DesignEffect(prior=RATE_PRIOR if view.kind == "rate" else TIME_PRIOR),
            )
            for view in views
        ]
        return cls(gate, setting, views, evidence, Sets(turns={} if gate in TIMES else None))

    def begin_block(self, *, is_new_step: bool) -> None:
        if is_new_step:
            self.sets.drop()
        for one in self.evidence:
            if is_new_step:
                one.start_step()
            one.begin(STEP_SHARE if is_new_step else None)

    def add(self, sample: Sample, values: Sequence[float], block: int) -> None:
        """`values`: what `read_values` reads of the sample for this gate."""
        full = self.sets.add(choose_stratum(self.gate, sample), sample, values, block)
        if full is not None:
            self._weigh(full)

    def end_block(self, block: int) -> None:
        for closed in self.sets.close_block(block):
            self._weigh(closed)
        for one in self.evidence:
            one.end_block()
        if any(one.is_new for one in self.evidence):
            self.highest_worse = max(self.highest_worse, self.worse_log)

    def _weigh(self, closed: ClosedSet) -> None:
        if any(closed.chosen) and not all(closed.chosen):
            for view, one in zip(self.views, self.evidence, strict=True):
                one.add(view, self.setting, closed)

    @property
    def worse_log(self) -> float:
        """The mean of what the views' bettors have: one of them is enough to find it."""
        return add_logs([one.worse_log - math.log(len(self.evidence)) for one in self.evidence])

    @property
    def fair_log(self) -> float:
        """Each view has to tell that it is not worse."""
        return min(one.highest_fair for one in self.evidence)

    @property
    def effect(self) -> float:
        return max(one.effect.value for one in self.evidence)

    def to_json(self) -> dict[str, Any]:
        return {
            "views": {view.name: one.to_json() for view, one in zip(self.views, self.evidence, strict=True)},
            "sets": self.sets.to_json(),
            "highest_worse": self.highest_worse,
        }

    @classmethod
    def from_json(cls, gate: str, setting: GateSetting, written: dict[str, Any]) -> Comparison:
        views = list_views(gate, setting)
        evidence = [ViewEvidence.from_json(written["views"][view.name]) for view in views]
        return cls(gate, setting, views, evidence, Sets.from_json(written["sets"]), written["highest_worse"])
