"""What each replica's prefix cache probably holds, from what was sent there: bounded, and checked against engines.

Blocks are chained hashes of pieces of a prompt, as gateways cut it: they need not match the engine's own blocks.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Protocol

BLOCK_TOKENS = 128.0
"""Tokens in a block until some were seen."""
MOST_BLOCKS = 256
"""A prompt with so many blocks may be longer than they are."""
MAX_BLOCKS = 200_000
"""Kept per index, over all replicas: 39 MB."""
SENT_MEMORY_S = 60.0
"""Sent work counts 1/e after so long: shorter forgets it between two long prompts, longer hides a burst."""

# vLLM prints its KV tokens; until it is known, a middling cache. Too large costs little: see docs/gateway.md.
_UNKNOWN_KV_TOKENS = 262_144
_GATEWAYS = 256
# In units of SENT_MEMORY_S: from here on the growing unit would come near to overflow.
_LARGEST_AGE = 200.0
_SHARED_S = 1.0
_SHARED_BLOCKS = 2048
# A result weighs half after 140 more.
_RESULT_MEMORY = 0.995
_ALARM_TOKENS = 16_384.0
_ALARM_BELOW_RATIO, _ALARM_OVER_RATIO = 0.5, 0.65


class Prompt(Protocol):
    """What the index reads of a request."""

    prompt_tokens: int

    @property
    def blocks(self) -> Sequence[int]: ...


class Sent(Prompt, Protocol):
    """What it reads of one that goes out."""

    uncached_tokens: int
    output_tokens: int


class ReplicaCache:
    """The blocks that one replica probably holds: least recently used first, a prompt's end before its beginning."""

    __slots__ = ("blocks", "generation", "kv_tokens", "replica_id", "sent")

    def __init__(self, replica_id: str, generation: int) -> None:
        self.replica_id = replica_id
        self.generation = generation
        self.kv_tokens = _UNKNOWN_KV_TOKENS
        self.blocks: OrderedDict[int, int | None] = OrderedDict()
        """Block → the block before it; None = it is the first."""
        self.sent = 0.0
        """Tokens of work, in the index' growing unit."""

    def count_match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are here."""
        held = self.blocks
        count = 0
        for block in blocks:
            if block not in held:
                break
            count += 1
        return count


class PrefixIndex:
    """One per model and release: weights decide what a block is worth, so releases share nothing."""

    def __init__(
        self,
        *,
        max_blocks: int = MAX_BLOCKS,
        block_tokens: float = BLOCK_TOKENS,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        self._max_blocks = max_blocks
        self._most_blocks = most_blocks
        self._caches: dict[tuple[str, int], ReplicaCache] = {}
        self._holders: dict[int, ReplicaCache] = {}
        self._block_tokens = block_tokens
        self._scaled_at_s = 0.0
        self._notes: deque[tuple[int, float, list[Any]]] = deque()
        self._noted_blocks = 0
        self._last_note = 0
        self._heard: dict[str, int] = {}
        self._prompt = self._expected = self._found = self._engine = 0.0
        self.expected_tokens = self.cached_tokens = 0
        """Expected in caches, and found there by engines that tell; since the start."""
        self.results = 0
        """Answers whose engine told its cached tokens."""
        self.alarm = False
        """Engines find less than half of what is expected there: affinity counts only so far as it holds."""

    def add(self, replica_id: str, generation: int, kv_tokens: int | None) -> ReplicaCache:
        """The same one again for the same generation; a new generation starts with an empty cache."""
        cache = self._caches.get((replica_id, generation))
        if cache is None:
            cache = self._caches[(replica_id, generation)] = ReplicaCache(replica_id, generation)
        cache.kv_tokens = kv_tokens or _UNKNOWN_KV_TOKENS
        return cache

    def forget(self, cache: ReplicaCache) -> None:
        """Its engine is gone, or its cache was reset."""
        self._caches.pop((cache.replica_id, cache.generation), None)
        for block in cache.blocks:
            if self._holders.get(block) is cache:
                del self._holders[block]
        cache.blocks.clear()
        cache.sent = 0.0

    @property
    def trust(self) -> float:
        """0 to 1: what an expected cached token is worth."""
        return self.agreement_ratio or 0.0 if self.alarm else 1.0

    @property
    def agreement_ratio(self) -> float | None:
        """Part of the expected cached tokens that engines found; None = nothing to compare yet."""
        return self._found / self._expected if self._expected > 0 else None

    def weigh_block(self, ticket: Prompt) -> float:
        """What a matching block of this prompt saves, in tokens: 0 without blocks, or when engines find none."""
        if not ticket.blocks:
            return 0.0
        tokens = self._tokens_per_block(ticket)
        return tokens * self.trust if self.alarm else tokens

    def find_holder(self, blocks: Sequence[int]) -> ReplicaCache | None:
        """Whoever got the longest known beginning last."""
        holders = self._holders
        for block in reversed(blocks):
            holder = holders.get(block)
            if holder is not None:
                return holder
        return None

    def sent_scale(self, now_s: float) -> float:
        """`cache.sent` times this is the work sent lately, in tokens."""
        age = (now_s - self._scaled_at_s) / SENT_MEMORY_S
        scale = math.exp(-age)
        if age < _LARGEST_AGE:
            return scale
        for cache in self._caches.values():
            cache.sent *= scale
        self._scaled_at_s = now_s
        return 1.0

    def note_sent(self, cache: ReplicaCache, ticket: Sent, now_s: float) -> None:
        """Once per request that goes to the replica, after the pick has set `uncached_tokens`."""
        scale = self.sent_scale(now_s)
        cache.sent += (ticket.uncached_tokens + ticket.output_tokens) / scale
        blocks = ticket.blocks
        if not blocks:
            return
        self._block_tokens += 0.01 * (self._tokens_per_block(ticket) - self._block_tokens)
        known = cache.count_match(blocks)
        if known < len(blocks):
            before = blocks[known - 1] if known else None
            self._write_note([cache.replica_id, cache.generation, before, list(blocks[known:])], now_s)
        self._use(cache, blocks, None)

    def note_result(self, *, prompt_tokens: int, expected_tokens: int, engine_tokens: int | None) -> None:
        """How many cached tokens were expected, and how many the engine told. None: it does not tell."""
        if engine_tokens is None:
            return
        self.results += 1
        self.expected_tokens += expected_tokens
        self.cached_tokens += engine_tokens
        self._prompt = self._prompt * _RESULT_MEMORY + prompt_tokens
        self._expected = self._expected * _RESULT_MEMORY + expected_tokens
        self._found = self._found * _RESULT_MEMORY + min(expected_tokens, engine_tokens)
        self._engine = self._engine * _RESULT_MEMORY + engine_tokens
        if self._expected >= _ALARM_TOKENS:
            bound = _ALARM_OVER_RATIO if self.alarm else _ALARM_BELOW_RATIO
            self.alarm = self._found < bound * self._expected

    def read_notes(self, now_s: float) -> list[Any]:
        """What other gateway processes need of the last second: `[number, note]` of each, fit for JSON."""
        notes = self._notes
        while notes and (now_s - notes[0][1] > _SHARED_S or self._noted_blocks > _SHARED_BLOCKS):
            self._noted_blocks -= len(notes.popleft()[2][3])
        return [[number, note] for number, _, note in notes]

    def absorb_notes(self, gateway_id: str, notes: Sequence[Any]) -> None:
        """Notes of another process; those heard before are passed over."""
        heard = self._heard.get(gateway_id, 0)
        for number, (replica_id, generation, before, blocks) in notes:
            cache = self._caches.get((replica_id, generation))
            if number > heard and cache is not None:
                self._use(cache, blocks, before)
        if notes:
            self._heard.pop(gateway_id, None)
            self._heard[gateway_id] = notes[-1][0]
        if len(self._heard) > _GATEWAYS:
            del self._heard[next(iter(self._heard))]

    def describe(self) -> dict[str, Any]:
        """For pages. Ratios are cached tokens to prompt tokens, over the last few hundred results."""
        measured = self._prompt > 0
        return {
            "replicas": len(self._caches),
            "blocks": sum(len(cache.blocks) for cache in self._caches.values()),
            "results": self.results,
            "expected_hit_ratio": self._expected / self._prompt if measured else None,
            "engine_hit_ratio": self._engine / self._prompt if measured else None,
            "agreement_ratio": self.agreement_ratio,
            "alarm": self.alarm,
        }

    def _tokens_per_block(self, ticket: Prompt) -> float:
        """Only whole blocks are hashed: half a block more is there on average."""
        count = len(ticket.blocks)
        return ticket.prompt_tokens / (count + 0.5) if count < self._most_blocks else self._block_tokens

    def _use(self, cache: ReplicaCache, blocks: Sequence[int], before: int | None) -> None:
        held, holders = cache.blocks, self._holders
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            held[block] = blocks[place - 1] if place else before
            held.move_to_end(block)
            holders[block] = cache
        for _ in range(_SHARED_BLOCKS):
            if before is None or before not in held:
                break
            held.move_to_end(before)
            before = held[before]
        room = min(cache.kv_tokens / self._block_tokens, self._max_blocks / max(1, len(self._caches)))
        while len(held) > room:
            block, _ = held.popitem(last=False)
            if holders.get(block) is cache:
                del holders[block]

    def _write_note(self, note: list[Any], now_s: float) -> None:
        self._last_note += 1
        self._notes.append((self._last_note, now_s, note))
        self._noted_blocks += len(note[3])
        if self._noted_blocks > 2 * _SHARED_BLOCKS:
            self.read_notes(now_s)
