"""Replicas with prefix caches for the affinity benchmark: what a policy may see of them, and what it may not."""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench._prefix_trace import BLOCK_TOKENS, Call
from pool.domain.affinity import ReplicaCache

REPLICAS = 8
CACHE_BLOCKS = 4_000
WINDOW_S = 60.0
_PREFILL_TOKENS_PER_S = 8_000.0
_S_PER_OUTPUT_TOKEN = 0.02


class EngineCache:
    """The engine's own: least recently used, a prompt's end goes before its beginning, as in vLLM."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, call: Call) -> int:
        """Returns the prompt tokens that were cached."""
        held = self._blocks
        cached = 0
        for block in call.blocks:
            if block not in held:
                break
            cached += 1
        for block in reversed(call.blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._size:
            held.popitem(last=False)
        return min(cached * BLOCK_TOKENS, call.prompt_tokens)


class Replica:
    """What gateway code sees. Engine gauges are unknown all the time: its own counts must do."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.in_flight = self.in_flight_tokens = self.prefill_tokens = 0
        self.others_in_flight: int | None = None
        self.others_tokens: int | None = None
        self.kv_tokens: int | None = CACHE_BLOCKS * BLOCK_TOKENS
        self.kv_used_ratio: float | None = None
        self.waiting: int | None = None
        self.gauges_at_s: float | None = None
        self.error_score = 0.0
        self.cached: ReplicaCache | None = None


@dataclass
class Outcome:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sent: list[int] = field(default_factory=list)
    """Uncached prompt and output tokens per replica."""
    windows: dict[int, list[int]] = field(default_factory=dict)
    first_tokens_s: list[float] = field(default_factory=list)

    @property
    def max_mean_load(self) -> float:
        return _max_mean(self.sent)

    @property
    def window_load(self) -> float:
        return statistics.median(_max_mean(one) for one in self.windows.values())

    @property
    def cached_ratio(self) -> float:
        return self.cached_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one request at its engine."""

    cached_tokens: int
    first_token_at_s: float
    finished_at_s: float


class Engines:
    """Prefill first come, first served at a fixed rate; decoding beside it. The books are kept here."""

    def __init__(self, replicas: int, cache_blocks: int) -> None:
        self._caches = [EngineCache(cache_blocks) for _ in range(replicas)]
        self._free_at_s = [0.0] * replicas
        self.outcome = Outcome(sent=[0] * replicas)

    def serve(self, number: int, call: Call) -> Served:
        cached = self._caches[number].use(call)
        self._note(number, call, cached)
        begin_at_s = max(call.at_s, self._free_at_s[number])
        first_at_s = begin_at_s + (call.prompt_tokens - cached) / _PREFILL_TOKENS_PER_S
        self._free_at_s[number] = first_at_s
        self.outcome.first_tokens_s.append(first_at_s - call.at_s)
        return Served(cached, first_at_s, first_at_s + call.output_tokens * _S_PER_OUTPUT_TOKEN)

    def _note(self, number: int, call: Call, cached: int) -> None:
        outcome, work = self.outcome, call.prompt_tokens - cached + call.output_tokens
        outcome.prompt_tokens += call.prompt_tokens
        outcome.cached_tokens += cached
        outcome.sent[number] += work
        window = outcome.windows.setdefault(int(call.at_s / WINDOW_S), [0] * len(outcome.sent))
        window[number] += work


class Agenda:
    """Calls in the order of their times."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def add(self, at_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._entries, (at_s, next(self._numbers), call))

    def run_until(self, now_s: float) -> None:
        while self._entries and self._entries[0][0] <= now_s:
            heapq.heappop(self._entries)[2]()


def run_blind(calls: Sequence[Call], *, replicas: int, cache_blocks: int) -> Outcome:
    """In turn, whatever the requests are."""
    engines = Engines(replicas, cache_blocks)
    for turn, call in enumerate(calls):
        engines.serve(turn % replicas, call)
    return engines.outcome


def _max_mean(loads: Sequence[int]) -> float:
    return max(loads) * len(loads) / sum(loads)
