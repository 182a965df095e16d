"""Signs that a release answers worse than it did, from counts alone: no text is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_ANSWERS: Final = 50
"""With fewer, a share says nothing."""
EMPTY_RATIO, REPEATED_RATIO = 0.01, 0.02
"""More is worth a look: an empty answer is a fault; the end of some texts repeats by right."""
LENGTH_JUMP_RATIO = 1.5
"""Mean length against the same release's over the day before."""


@dataclass(frozen=True)
class Quality:
    """Counts of one release; `answers`: those that ended well. `…_before`: over the day before."""

    model: str
    release: int
    answers: int
    empty: int
    repeated: int
    cut_by_length: int
    output_tokens: int
    answers_before: int
    output_tokens_before: int

    @property
    def mean_tokens(self) -> float | None:
        return self.output_tokens / self.answers if self.answers else None

    @property
    def length_ratio(self) -> float | None:
        """1 = as long as before; None where one of the two has too few answers."""
        if (
            self.answers < LEAST_ANSWERS
            or self.answers_before < LEAST_ANSWERS
            or not self.output_tokens_before
        ):
            return None
        before = self.output_tokens_before / self.answers_before
        return self.output_tokens / self.answers / before

    def ratio(self, count: int) -> float | None:
        return count / self.answers if self.answers >= LEAST_ANSWERS else None

    @property
    def signs(self) -> tuple[str, ...]:
        """`empty`, `repeated`, `length_jump`: what is over its limit."""
        found = []
        if (self.ratio(self.empty) or 0.0) > EMPTY_RATIO:
            found.append("empty")
        if (self.ratio(self.repeated) or 0.0) > REPEATED_RATIO:
            found.append("repeated")
        length = self.length_ratio
        if length is not None and not 1 / LENGTH_JUMP_RATIO <= length <= LENGTH_JUMP_RATIO:
            found.append("length_jump")
        return tuple(found)
