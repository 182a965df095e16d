"""What a block map says in figures: counted once for each map, told at each look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pool.domain.gauges import GaugeCell
from workers.ring_records import BlockMap

LEAST_HELD_BLOCKS: Final = 64
"""Under so many held blocks the tail ratio is 0: one short chat in a block of 128 tokens would read 61 %."""


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """Tails are None where the engine cannot tell them. Reusable and free ones are both free to be taken."""

    at_s: float
    shared_blocks: int
    reusable_blocks: int
    free_blocks: int
    held_tokens: int
    tail_tokens: int | None
    tail_ratio: float | None
    largest_free_run_blocks: int

    def note(self, cell: GaugeCell) -> None:
        cell.note("kv_shared_blocks", self.shared_blocks)
        cell.note("kv_reusable_blocks", self.reusable_blocks)
        cell.note("kv_free_blocks", self.free_blocks)
        cell.note("kv_held_tokens", self.held_tokens)
        cell.note("largest_free_run_blocks", self.largest_free_run_blocks)
        if self.tail_tokens is not None:
            cell.note("kv_tail_tokens", self.tail_tokens)
        if self.tail_ratio is not None:
            cell.note("kv_tail_ratio", self.tail_ratio)


def count_blocks(found: BlockMap) -> BlockFigures:
    tail = found.tail_tokens
    held = found.held_tokens
    ratio = None
    if tail is not None:
        ratio = tail / held if found.used_blocks >= LEAST_HELD_BLOCKS else 0.0
    return BlockFigures(
        at_s=found.at_s,
        shared_blocks=found.shared_blocks,
        reusable_blocks=found.reusable_blocks,
        free_blocks=found.free_blocks,
        held_tokens=held,
        tail_tokens=tail,
        tail_ratio=ratio,
        largest_free_run_blocks=found.largest_free_run_blocks,
    )
