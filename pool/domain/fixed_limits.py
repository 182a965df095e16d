"""Whether the candidate passes a fixed limit: a share of its units that may be wrong, read at any time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pool.domain.gates import ALPHA, GATES
from pool.domain.wealth import Wealth

BAR: Final = math.log(len(GATES) / ALPHA)
CAUTION: Final = 1.5
"""Units that go wrong together are not independent: evidence counts by so much less."""
_ODDS: Final = (1.5, 2.5, 5.0, 20.0)
"""By how much the odds are thought to pass the limit's, in equal parts."""


@dataclass(slots=True)
class LimitTest:
    """Tests that at most `limit` (0 to 1) of the units are wrong, by likelihood ratios."""

    limit: float
    wealth: Wealth = field(default_factory=Wealth.with_reserve)
    highest: float = 0.0
    wrong: int = 0
    units: int = 0

    def add(self, wrong: int, units: int) -> None:
        """Of one block."""
        if not units:
            return
        self.wealth.begin()
        self.wealth.grow([_gain(wrong, units, self.limit, odds) for odds in _ODDS], CAUTION)
        self.highest = max(self.highest, self.wealth.log)
        self.wrong += wrong
        self.units += units

    @property
    def is_broken(self) -> bool:
        return self.highest >= BAR

    def to_json(self) -> list[Any]:
        return [self.limit, self.wealth.to_json(), self.highest, self.wrong, self.units]

    @classmethod
    def from_json(cls, written: Sequence[Any]) -> LimitTest:
        limit, wealth, highest, wrong, units = written
        return cls(limit, Wealth.from_json(wealth), highest, wrong, units)


def _gain(wrong: int, units: int, limit: float, odds: float) -> float:
    higher = odds * limit / (1 - limit + odds * limit)
    right = units - wrong
    return wrong * math.log(higher / limit) + right * math.log((1 - higher) / (1 - limit))
