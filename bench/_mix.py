"""The mix of requests of the lane benchmark: public traces by path, or a synthetic one with their quantiles."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Call:
    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Service:
    """An hour of one service: quantiles 0, 0.5, 0.9, 0.99, 1 of prompt and output tokens."""

    calls: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]


QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
# Of the Azure LLM inference trace 2023 (chat, code) and the Mooncake conversation trace, as published.
SERVICES = (
    Service(19_366, (32, 1_020, 2_734, 4_142, 14_050), (2, 129, 424, 601, 1_000)),
    Service(8_819, (32, 1_469, 5_186, 7_436, 7_437), (1, 13, 55, 249, 1_899)),
    Service(12_031, (512, 6_909, 27_367, 85_399, 126_195), (1, 350, 597, 1_115, 2_000)),
)
_HOUR_S = 3600.0
# Fitted to the recorded arrivals of all three: at 80 % of four replicas the tokens that come in 30 s (2 min) deviate by
# 0.27 (0.13) of their mean; random arrivals by 0.19 (0.10).
_BURST_SIGMA = 0.2
_BURST_S = (10.0, 60.0)


def read_traces(paths: Sequence[Path]) -> list[Call]:
    """Of all files together, in the order of their own clocks, each starting at 0."""
    calls = [call for path in paths for call in _read_trace(path)]
    return sorted(calls, key=lambda call: call.at_s)


def make_mix(draw: random.Random) -> list[Call]:
    """An hour with arrivals that come and go in bursts of minutes, as recorded ones do."""
    calls = []
    for service in SERVICES:
        at_s, rate = 0.0, 1.0
        changes_at_s = 0.0
        for _ in range(service.calls):
            if at_s >= changes_at_s:
                rate = draw.lognormvariate(0.0, _BURST_SIGMA)
                changes_at_s = at_s + draw.uniform(*_BURST_S)
            at_s += draw.expovariate(rate * service.calls / _HOUR_S)
            prompt, output = (_draw_quantile(draw, marks) for marks in (service.prompt, service.output))
            calls.append(Call(at_s, prompt, output))
    return sorted(calls, key=lambda call: call.at_s)


def scale_arrivals(calls: Sequence[Call], tokens_per_s: float) -> list[Call]:
    """Stretches time, so that so many tokens (prompt and output) arrive per second on average."""
    span_s = sum(call.prompt_tokens + call.output_tokens for call in calls) / tokens_per_s
    start_s, end_s = calls[0].at_s, calls[-1].at_s
    stretch = span_s / (end_s - start_s)
    return [Call((call.at_s - start_s) * stretch, call.prompt_tokens, call.output_tokens) for call in calls]


def draw_arrivals(calls: Sequence[Call], draw: random.Random) -> list[Call]:
    """The same requests in another order, at random times with the same mean rate."""
    span_s = calls[-1].at_s - calls[0].at_s
    times = sorted(draw.uniform(0.0, span_s) for _ in calls)
    shuffled = draw.sample(calls, len(calls))
    return [
        Call(at_s, call.prompt_tokens, call.output_tokens) for at_s, call in zip(times, shuffled, strict=True)
    ]


def _read_trace(path: Path) -> Iterator[Call]:
    with path.open(newline="") as file:
        if path.suffix == ".jsonl":
            for line in file:
                row = json.loads(line)
                yield Call(row["timestamp"] / 1000, max(1, row["input_length"]), max(1, row["output_length"]))
            return
        start: datetime | None = None
        for row in csv.DictReader(file):
            # Seven digits of a second are one more than a datetime holds.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26] + "+00:00")
            start = start or at
            tokens = (max(1, int(row[name])) for name in ("ContextTokens", "GeneratedTokens"))
            yield Call((at - start).total_seconds(), *tokens)


def _draw_quantile(draw: random.Random, marks: tuple[int, ...]) -> int:
    """Between two quantiles the logarithm is uniform."""
    share = draw.random()
    for number in range(1, len(QUANTILES)):
        if share <= QUANTILES[number]:
            low, high = QUANTILES[number - 1], QUANTILES[number]
            part = (share - low) / (high - low)
            return int(marks[number - 1] ** (1 - part) * marks[number] ** part)
    return marks[-1]
