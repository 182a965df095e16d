"""An e-process that may begin at any block, and the design effect by which its evidence is slowed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pool.domain.evalues import TILTS

_LATE_BLOCKS: Final = 30
"""After n blocks, 1 / (n + this) of what is not betted yet begins with the next: changes an hour later are found at the
price of some nats, where a bet from the first block on would first have to win back what a good hour cost it."""
STEP_SHARE: Final = 0.25
"""Of what is not betted yet: begins with a step, where a change is likelier."""
_LAGS: Final = 12
"""Blocks: 2 min. Noise of a release that lasts longer is seen in part only."""
_PRIOR_BLOCKS: Final = 30.0
TIME_PRIOR: Final = 2.5
RATE_PRIOR: Final = 1.2
"""The design effect until the blocks tell: as if it had been seen in as many as _PRIOR_BLOCKS. Times of one release
move together, for they share its replicas; errors do less."""
_AT_ONCE: Final = 0.8
"""Of the bet begins with the first block."""


@dataclass(slots=True)
class Wealth:
    """What a bettor has who began with 1: the mean over TILTS, and over the blocks at which the bet may have begun
    (a mixture over change points, as of Shiryaev and Roberts). A mean of e-processes is one (Ville's inequality)."""

    logs: list[float] = field(default_factory=lambda: [0.0] * len(TILTS))
    reserve_log: float = -math.inf
    """Log of what is not betted yet."""
    blocks: int = 0

    @classmethod
    def with_reserve(cls) -> Wealth:
        return cls([math.log(_AT_ONCE)] * len(TILTS), math.log(1 - _AT_ONCE))

    def begin(self, share: float | None = None) -> None:
        """Before a block. `share` of the reserve, None: what is usual."""
        self.blocks += 1
        if self.reserve_log == -math.inf:
            return
        part = 1 / (self.blocks + _LATE_BLOCKS) if share is None else share
        bet = self.reserve_log + math.log(part)
        self.logs = [
            max(one, bet) + math.log1p(math.exp(-abs(one - bet))) if one > bet - 40 else bet
            for one in self.logs
        ]
        self.reserve_log += math.log1p(-part)

    def grow(self, gains: Sequence[float], effect: float) -> None:
        """`gains`: by tilt, logs of e-values. `effect`: the design effect, at least 1, known before this block."""
        self.logs = [one + gain / effect for one, gain in zip(self.logs, gains, strict=True)]

    @property
    def log(self) -> float:
        return add_logs([*(one - math.log(len(self.logs)) for one in self.logs), self.reserve_log])

    def to_json(self) -> list[Any]:
        reserve = None if self.reserve_log == -math.inf else self.reserve_log
        return [self.logs, reserve, self.blocks]

    @classmethod
    def from_json(cls, written: Sequence[Any]) -> Wealth:
        logs, reserve, blocks = written
        return cls(list(logs), -math.inf if reserve is None else reserve, blocks)


def add_logs(values: Sequence[float]) -> float:
    """log of the sum of exp(values); -inf is nothing."""
    top = max(values)
    if top == -math.inf:
        return top
    return top + math.log(sum([math.exp(value - top) for value in values]))


@dataclass(slots=True)
class DesignEffect:
    """By how much the long-run variance of the blocks' contrasts passes what drawing by lot would give: Newey and West
    (1987) with Bartlett weights over 2 min, shrunk towards a prior. Sessions that go on, and noise that one release has
    for itself (load of its replicas), both show up as contrasts that resemble the ones before."""

    prior: float = TIME_PRIOR
    count: int = 0
    total: float = 0.0
    products: list[float] = field(default_factory=lambda: [0.0] * (_LAGS + 1))
    recent: list[float] = field(default_factory=list)

    def add(self, contrast: float) -> None:
        """`contrast`: of one block, divided by its standard deviation when candidates are drawn by lot."""
        self.count += 1
        self.total += contrast
        self.recent = [contrast, *self.recent[:_LAGS]]
        for lag, other in enumerate(self.recent):
            self.products[lag] += contrast * other

    @property
    def value(self) -> float:
        if not self.count:
            return self.prior
        mean = self.total / self.count
        variance = self.products[0] / self.count - mean * mean
        for lag in range(1, min(_LAGS, self.count - 1) + 1):
            covariance = self.products[lag] / self.count - mean * mean * (1 - lag / self.count)
            variance += 2 * (1 - lag / (_LAGS + 1)) * covariance
        shrunk = (_PRIOR_BLOCKS * self.prior + self.count * variance) / (_PRIOR_BLOCKS + self.count)
        return max(1.0, shrunk)

    def to_json(self) -> list[Any]:
        return [self.prior, self.count, self.total, self.products, self.recent]

    @classmethod
    def from_json(cls, written: Sequence[Any]) -> DesignEffect:
        prior, count, total, products, recent = written
        return cls(prior, count, total, list(products), list(recent))
