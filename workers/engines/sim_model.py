"""The simulated engine's latency model: continuous batching with chunked prefill, slots, KV blocks, prefix cache.

Pure: no clock, no I/O. step() says how long the next step takes and which requests got a token in it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Rates of a small GPU by default; a test or a rehearsal sets them."""

    prefill_tokens_per_s: float = 20_000.0
    step_s: float = 0.012
    step_per_seq_s: float = 0.0002
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    block_size: int = 16
    kv_tokens: int = 65_536
    enable_prefix_caching: bool = True
    load_s: float = 0.0
    default_answer_tokens: int = 64
    chat_template: bool = True
    garbage: bool = False
    """Answers with 200 and nonsense, as an engine does whose arithmetic is broken (FC-70)."""
    garbage_from_tokens: int = 0
    """Only for prompts of at least so many tokens."""
    error_ratio: float = 0.0
    """This share of completions is answered with 500, evenly spread."""
    sound_requests: int = 64
    """So many completions first are answered well: a warm-up must succeed for users to see what comes after."""
    delay_s: float = 0.0
    """Added before each first token, once a completion is admitted."""

    @classmethod
    def read(cls, content: dict[str, Any]) -> SimSettings:
        """Unknown names raise TypeError; None leaves a default."""
        return cls(**{name: value for name, value in content.items() if value is not None})


@dataclass(slots=True, eq=False)
class SimRequest:
    """`blocks` are the hashes of its full prompt blocks; `done` counts prompt tokens computed or cached."""

    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...] = ()
    done: int = 0
    cached: int = 0
    generated: int = 0
    held_blocks: int = 0
    preempted: int = 0

    @property
    def finished(self) -> bool:
        return self.generated >= self.answer_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """`decoding` and `prefilling`: how many sequences it computed of each kind."""

    duration_s: float
    prefilled_tokens: int
    produced: tuple[SimRequest, ...]
    decoding: int = 0
    prefilling: int = 0


@dataclass(slots=True)
class SimModel:
    settings: SimSettings
    waiting: deque[SimRequest] = field(default_factory=deque)
    running: list[SimRequest] = field(default_factory=list)
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    _cache: OrderedDict[int | object, bool] = field(default_factory=OrderedDict)
    """Blocks that nobody runs on, the longest unused first, and whether each still holds a prefix."""

    @property
    def total_blocks(self) -> int:
        return max(1, self.settings.kv_tokens // self.settings.block_size)

    @property
    def used_blocks(self) -> int:
        return sum(request.held_blocks for request in self.running)

    @property
    def cached_blocks(self) -> int:
        """Blocks of prefixes that later requests may find; the rest of those not in use is free."""
        return sum(self._cache.values())

    def add(self, request: SimRequest) -> None:
        self.waiting.append(request)

    def remove(self, request: SimRequest) -> None:
        """Also for a client that went: frees its slot and blocks at once."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.held_blocks = 0

    def step(self) -> Step | None:
        """None when there is nothing to do. Finished requests leave before it returns."""
        budget = self.settings.max_num_batched_tokens
        decoding = [one for one in self.running if one.done >= one.prompt_tokens]
        budget -= len(decoding)
        self._admit()
        prefilled = prefilling = 0
        produced = list(decoding)
        for request in list(self.running):
            if request.done >= request.prompt_tokens or budget <= 0:
                continue
            chunk = min(budget, request.prompt_tokens - request.done)
            request.done += chunk
            budget -= chunk
            prefilled += chunk
            prefilling += 1
            if request.done >= request.prompt_tokens:
                produced.append(request)
        if not produced and not prefilled:
            return None
        for request in produced:
            request.generated += 1
        self._grow(produced)
        for request in produced:
            if request.finished:
                self._remember(request)
                self.remove(request)
        self._evict()
        took = self._duration(len(produced), prefilled)
        return Step(took, prefilled, tuple(produced), len(decoding), prefilling)

    def _duration(self, sequences: int, prefilled: int) -> float:
        settings = self.settings
        return (
            settings.step_s + settings.step_per_seq_s * sequences + prefilled / settings.prefill_tokens_per_s
        )

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            cached = self._find_cached(request)
            needed = self._blocks_of(request.prompt_tokens + 1)
            if self.used_blocks + needed > self.total_blocks and self.running:
                return
            self.waiting.popleft()
            self.prefix_queries += request.prompt_tokens
            self.prefix_hits += cached
            request.cached = max(request.cached, cached)
            request.done = max(request.done, cached)
            request.held_blocks = needed
            self.running.append(request)

    def _find_cached(self, request: SimRequest) -> int:
        """Tokens of full blocks that are cached; the last prompt token is always computed."""
        if not self.settings.enable_prefix_caching:
            return 0
        tokens = 0
        for block in request.blocks:
            if block not in self._cache:
                break
            self._cache.move_to_end(block)
            tokens += self.settings.block_size
        return min(tokens, max(0, request.prompt_tokens - 1))

    def _grow(self, produced: list[SimRequest]) -> None:
        """Answers take blocks; without room the youngest request is put back, as vLLM does."""
        for request in produced:
            request.held_blocks = self._blocks_of(request.prompt_tokens + request.generated)
        while self.used_blocks > self.total_blocks and len(self.running) > 1:
            victim = self.running.pop()
            victim.held_blocks = 0
            victim.done = 0
            victim.preempted += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)

    def _remember(self, request: SimRequest) -> None:
        if not self.settings.enable_prefix_caching:
            return
        for block in request.blocks:
            self._cache[block] = True
            self._cache.move_to_end(block)
        # As in vLLM, blocks of the prompt's end and of the answer come back empty, behind all others.
        for _ in range(request.held_blocks - len(request.blocks)):
            self._cache[object()] = False

    def _evict(self) -> None:
        while len(self._cache) > self.total_blocks - self.used_blocks:
            self._cache.popitem(last=False)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_size)


def count_tokens(text: str) -> int:
    return max(1, -(-len(text.encode()) // CHARS_PER_TOKEN))


def hash_blocks(text: str, *, block_size: int, salt: str = "") -> tuple[int, ...]:
    """Chained hashes of full blocks: equal prefixes give equal blocks, in one tenant only."""
    content = text.encode()
    width = block_size * CHARS_PER_TOKEN
    found: list[int] = []
    last = hash(salt)
    for start in range(0, len(content) - width + 1, width):
        last = hash((last, content[start : start + width]))
        found.append(last)
    return tuple(found)
