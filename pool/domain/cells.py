"""What is counted of requests, for one series and one stretch of time. Adding cells up is exact in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pool.domain.histogram import Histogram

COUNTS: Final = (
    "requests", "errors", "interrupted", "late", "refused", "spilled", "retried", "degraded", "client_gone",
    "cached_answers", "empty", "repeated", "cut_by_length", "retransmits", "joined",
    "prompt_tokens", "cached_tokens", "output_tokens",
)  # fmt: skip
"""`errors`: 5xx of ours or the engine's, and interrupted streams. `refused`: 429 and 503 that no replica saw.
`degraded`: answered, but spilled, retried, truncated or late. `joined`: the engine's own times are known."""
SUMS: Final = (
    "tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s", "e2e_s", "engine_queue_s", "engine_prefill_s",
    "engine_decode_s", "joined_e2e_s",
)  # fmt: skip
"""Seconds, over all requests that reached a replica; those named `engine_` and `joined_e2e_s` over the joined ones."""
STAGES: Final = ("queue", "ttft", "itl", "e2e", "per_token")
"""Of each there is a histogram. `itl`: between chunks; `per_token`: end to end ÷ output tokens."""


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Names, not ids: a cell outlives what it counts. `release` 0 and "" = none, or not known.

    A request counts in two series: its own, with `region` "", and that of its model and region, all else empty.
    """

    model: str
    release: int = 0
    replica: str = ""
    lane: str = ""
    tier: str = ""
    label: str = ""
    long_prompt: bool = False
    """Over 8,192 prompt tokens."""
    region: str = ""


@dataclass(slots=True)
class Cell:
    """What is missing in a mapping is 0."""

    counts: dict[str, int] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    """By code, `ok` among them."""
    stages: dict[str, Histogram] = field(default_factory=dict)

    def add(self, other: Cell) -> None:
        """`other` stays as it is, and shares nothing with this one."""
        counts, sums, outcomes, stages = self.counts, self.sums, self.outcomes, self.stages
        for name, count in other.counts.items():
            counts[name] = counts.get(name, 0) + count
        for name, seconds in other.sums.items():
            sums[name] = sums.get(name, 0.0) + seconds
        for code, count in other.outcomes.items():
            outcomes[code] = outcomes.get(code, 0) + count
        for stage, histogram in other.stages.items():
            mine = stages.get(stage)
            if mine is None:
                stages[stage] = histogram.copy()
            else:
                mine.absorb(histogram)
