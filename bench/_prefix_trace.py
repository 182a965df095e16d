"""The requests of the affinity benchmark: a public trace with prefix ids by path, or a synthetic hour of chats."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512
"""As the trace's publishers cut prompts."""
_HOUR_S = 3600.0
_SESSIONS = 7_600
_DOCUMENTS = 150
_MORE_TURNS = 0.37
_LONGEST_TOKENS = 126_000


@dataclass(frozen=True, slots=True)
class Call:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """One id per block; equal ids mean equal blocks with equal ones before them."""


def read_trace(path: Path) -> list[Call]:
    """Mooncake's form: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` per line."""
    calls = []
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            blocks = tuple(row["hash_ids"])
            calls.append(Call(row["timestamp"] / 1000, row["input_length"], row["output_length"], blocks))
    return sorted(calls, key=lambda call: call.at_s)


def make_trace(draw: random.Random) -> list[Call]:
    """One system prompt, documents of unequal fame, chats whose turns carry all that was said before."""
    fresh = itertools.count(1)
    documents = [[next(fresh) for _ in range(draw.randint(2, 24))] for _ in range(_DOCUMENTS)]
    fame = [1.0 / (rank + 3) for rank in range(_DOCUMENTS)]
    calls: list[Call] = []
    for _ in range(_SESSIONS):
        about = draw.choices(documents, fame)[0] if draw.random() < 0.08 else []
        calls += _make_chat(draw, fresh, [0, *about])
    return sorted((call for call in calls if call.at_s < _HOUR_S), key=lambda call: call.at_s)


def _make_chat(draw: random.Random, fresh: itertools.count[int], blocks: list[int]) -> list[Call]:
    at_s = draw.uniform(0.0, _HOUR_S)
    said = draw.lognormvariate(8.55, 1.25)
    calls = []
    while True:
        tokens = min(_LONGEST_TOKENS, int(len(blocks) * BLOCK_TOKENS + said) + 1)
        output = min(2_000, int(draw.lognormvariate(5.85, 0.48)) + 1)
        whole = tokens // BLOCK_TOKENS
        blocks = blocks[:whole] + [next(fresh) for _ in range(whole - len(blocks))]
        # The last block is not full: what follows will change it.
        calls.append(Call(at_s, tokens, output, (*blocks, next(fresh))))
        if draw.random() > _MORE_TURNS:
            return calls
        at_s += draw.lognormvariate(4.9, 1.0)
        said = tokens - whole * BLOCK_TOKENS + output + draw.lognormvariate(6.5, 1.2)
