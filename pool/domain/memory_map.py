"""What lies in a device's memory and in a KV cache: parts that add up to the measured total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pool.domain.gauges import Gauge

FEWEST_HELD_BLOCKS: Final = 64
"""Below, the tail ratio is 0: one chat of 50 tokens in a block of 128 would read 61 %."""


class MemoryOwner(StrEnum):
    """Who holds a part of a device. In the order in which the parts are shown."""

    WEIGHTS = "weights"
    """A replica's weights."""
    KV_USED = "kv_used"
    """KV blocks of requests that run, as far as tokens fill them."""
    KV_TAIL = "kv_tail"
    """The part of used blocks that no token fills: waste in each request's last block."""
    KV_REUSABLE = "kv_reusable"
    """Blocks that nobody runs on, kept for prompts that begin alike; taken as soon as they are needed."""
    KV_UNSPLIT = "kv_unsplit"
    """KV cache of a replica that has not told what is in it."""
    UNUSED = "unused"
    """Reserved by an engine and empty: free KV blocks, and what torch's allocator holds without a tensor in it."""
    ENGINE_OTHER = "engine_other"
    """Measured as ours beyond the above: activations, graphs, libraries."""
    PROMISED = "promised"
    """Free now, but promised to a replica that starts."""
    FOREIGN = "foreign"
    """Held by processes that Sluice did not start."""
    FREE = "free"


@dataclass(frozen=True, kw_only=True)
class KvFill:
    """What is in a KV cache, in blocks. The three states add up to all but the engine's null block."""

    used_blocks: float
    reusable_blocks: float
    free_blocks: float
    tail_ratio: float | None = None
    """Tokens that the used blocks could still take ÷ tokens that they fit, without a floor; None: nobody told."""

    @property
    def blocks(self) -> float:
        return self.used_blocks + self.reusable_blocks + self.free_blocks

    @property
    def used_ratio(self) -> float | None:
        return self.used_blocks / self.blocks if self.blocks > 0 else None


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What one replica holds of one device. None: not known. Sizes in bytes, of this device alone."""

    replica: str
    weights_bytes: float | None = None
    kv_bytes: float | None = None
    fill: KvFill | None = None
    idle_bytes: float | None = None
    """Reserved by torch's allocator without a tensor in it; absent where there is no CUDA."""
    promised_bytes: float = 0.0
    """What it will take, while it starts."""


@dataclass(frozen=True)
class MemoryPart:
    owner: MemoryOwner
    size_bytes: int
    replica: str | None = None
    """None: not tied to one."""


@dataclass(frozen=True)
class Measured:
    """A device's memory as the driver (for `cpu`: the kernel) tells it. What is neither free nor ours is foreign: of
    other processes, or the driver's own."""

    total_bytes: int
    free_bytes: int
    ours_bytes: int


def split_device(measured: Measured, holdings: Sequence[Holding]) -> tuple[MemoryPart, ...]:
    """Parts that add up to the total exactly. What engines tell never takes more than what was measured as ours."""
    ours = min(measured.ours_bytes, measured.total_bytes)
    free = min(measured.free_bytes, measured.total_bytes - ours)
    parts = _engine_parts(holdings, ours)
    promised = min(free, round(sum(holding.promised_bytes for holding in holdings)))
    parts += [
        MemoryPart(MemoryOwner.PROMISED, promised),
        MemoryPart(MemoryOwner.FOREIGN, measured.total_bytes - ours - free),
        MemoryPart(MemoryOwner.FREE, free - promised),
    ]
    return tuple(part for part in parts if part.size_bytes > 0)


def _engine_parts(holdings: Sequence[Holding], ours: int) -> list[MemoryPart]:
    parts, left = [], ours
    # What surely lies in memory first: the empty rest of a cache may not be backed by pages yet (CPU).
    told = sorted(
        ((owner, size, holding.replica) for holding in holdings for owner, size in _told(holding)),
        key=lambda part: _ORDER[part[0]],
    )
    for owner, size, replica in told:
        taken = min(max(0, round(size)), left)
        left -= taken
        parts.append(MemoryPart(owner, taken, replica))
    return [*parts, MemoryPart(MemoryOwner.ENGINE_OTHER, left)]


def _told(holding: Holding) -> list[tuple[MemoryOwner, float]]:
    told = [(MemoryOwner.WEIGHTS, holding.weights_bytes or 0.0)]
    kv, fill = holding.kv_bytes or 0.0, holding.fill
    idle = holding.idle_bytes or 0.0
    if fill is None or fill.blocks <= 0:
        return [*told, (MemoryOwner.KV_UNSPLIT, kv), (MemoryOwner.UNUSED, idle)]
    used, reusable = kv * fill.used_blocks / fill.blocks, kv * fill.reusable_blocks / fill.blocks
    tail = used * (fill.tail_ratio or 0.0)
    return [
        *told,
        (MemoryOwner.KV_USED, used - tail),
        (MemoryOwner.KV_TAIL, tail),
        (MemoryOwner.KV_REUSABLE, reusable),
        (MemoryOwner.UNUSED, kv - used - reusable + idle),
    ]


def read_fill(gauges: Mapping[str, Gauge]) -> KvFill | None:
    """None where the engine did not tell all three states.

    What is used is counted at each step, the others by a scan now and then: they share what is not used, as the scan
    saw them.
    """
    used, reusable, free = (gauges.get(f"kv_{name}_blocks") for name in ("used", "reusable", "free"))
    tail, held, blocks = (gauges.get(name) for name in ("kv_tail_tokens", "kv_held_tokens", "kv_blocks"))
    if used is None or reusable is None or free is None:
        return None
    scanned = reusable.mean + free.mean
    rest = scanned if blocks is None else max(0.0, blocks.mean - used.mean)
    kept = rest * reusable.mean / scanned if scanned > 0 else 0.0
    return KvFill(
        used_blocks=used.mean,
        reusable_blocks=kept,
        free_blocks=rest - kept,
        tail_ratio=plain_tail(tail.mean if tail else None, held.mean if held else None),
    )


def plain_tail(tail_tokens: float | None, held_tokens: float | None) -> float | None:
    """The share of the held blocks that no token fills, without the floor of `tail_ratio`; None: nobody told."""
    if tail_tokens is None or held_tokens is None:
        return None
    return min(1.0, max(0.0, tail_tokens / held_tokens)) if held_tokens > 0 else 0.0


def tail_ratio(*, held_blocks: float, held_tokens: float, tail_tokens: float) -> float:
    """`kv_tail` of one sample, 0 to 1: tokens that fit into the held blocks but are not used ÷ tokens that they fit."""
    if held_blocks < FEWEST_HELD_BLOCKS or held_tokens <= 0:
        return 0.0
    return min(1.0, max(0.0, tail_tokens / held_tokens))


def sum_parts(parts: Iterable[MemoryPart]) -> dict[MemoryOwner, int]:
    """By owner; who holds nothing is missing."""
    sizes: dict[MemoryOwner, int] = {}
    for part in parts:
        sizes[part.owner] = sizes.get(part.owner, 0) + part.size_bytes
    return sizes


_ORDER: Final = {owner: place for place, owner in enumerate(MemoryOwner)}
