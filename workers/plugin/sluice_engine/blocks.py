"""The block map of a paged KV cache: the state of each block, who holds it, and what the last blocks waste.

A scan looks at every block, so it is made only as often as a share of the steps' time allows, and a large one is cut
into slices over several steps. The map of a scan in one slice is of one moment.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from typing import Any, Final

from sluice_engine import ring
from sluice_engine.ring import MapRequest, RingWriter

# Of the steps' time: what scans and the hook's own work in each step may take together, below the promised 1 %.
SHARE: Final = 0.007
# About half a millisecond.
SLICE_BLOCKS: Final = 8192
WATCHED_NS, UNWATCHED_NS = 250_000_000, 1_000_000_000
# Without any credit a map comes at least so often, while it costs at most 0.1 % of that time.
SELDOM_NS, SELDOM_COST_NS = 5_000_000_000, 5_000_000
# When the engine falls idle no step waits for the scan.
IDLE_COST_NS = 300_000
MAX_CREDIT_NS = 50_000_000


class BlockScans:
    """Decides when to scan, and carries a scan through."""

    def __init__(self, scheduler: Any, writer: RingWriter) -> None:
        self._scheduler = scheduler
        self._writer = writer
        self._scan: Iterator[None] | None = None
        self._credit_ns = self._step_cost_ns = 0.0
        self._cost_ns = self._spent_ns = self._scanned_ns = 0

    def note_step_cost(self, cost_ns: float) -> None:
        """What the hook itself takes of a step, as measured now and then."""
        self._step_cost_ns += (cost_ns - self._step_cost_ns) * 0.25

    def advance(self, now_ns: int, busy_ns: int, *, is_idle: bool) -> None:
        """After a step of `busy_ns`: the next slice of a scan, or none."""
        if busy_ns:
            earned = SHARE * busy_ns - self._step_cost_ns
            self._credit_ns = min(MAX_CREDIT_NS, max(-MAX_CREDIT_NS, self._credit_ns + earned))
        if self._scan is None:
            if not self._is_due(now_ns, is_idle=is_idle):
                return
            self._scan, self._spent_ns = scan_blocks(self._scheduler, self._writer), 0
        self._work(now_ns, at_once=is_idle)

    def _is_due(self, now_ns: int, *, is_idle: bool) -> bool:
        if not self._writer.blocks:
            return False
        if is_idle and self._cost_ns <= IDLE_COST_NS:
            return True
        interval = WATCHED_NS if self._writer.is_watched(now_ns) else UNWATCHED_NS
        since = now_ns - self._scanned_ns
        if since < interval:
            return False
        if self._credit_ns >= self._cost_ns:
            return True
        return since >= SELDOM_NS and self._cost_ns <= SELDOM_COST_NS

    def _work(self, now_ns: int, *, at_once: bool) -> None:
        assert self._scan is not None
        before = time.thread_time_ns()
        try:
            ended = next(self._scan, self)
            while ended is not self and at_once:
                ended = next(self._scan, self)
        except BaseException:
            self._scan = None
            raise
        finally:
            spent = time.thread_time_ns() - before
            self._spent_ns += spent
            self._credit_ns -= spent
            self._writer.add(ring.OWN_NS, spent)
            self._writer.add(ring.SCAN_NS, spent)
        if ended is self:
            self._scan, self._cost_ns, self._scanned_ns = None, self._spent_ns, now_ns
            self._writer.add(ring.SCANS, 1)


def scan_blocks(scheduler: Any, writer: RingWriter) -> Iterator[None]:
    """Writes a map at its end. Yields between slices, between which the engine may go on."""
    first_step = writer.newest_step
    pool = scheduler.kv_cache_manager.block_pool
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    states = bytearray()
    blocks = pool.blocks
    for start in range(0, writer.blocks, SLICE_BLOCKS):
        if start:
            yield
        states += _read_states(blocks[start : min(start + SLICE_BLOCKS, writer.blocks)])
    states[pool.null_block.block_id] = ring.NULL
    owners = array("H", [ring.NO_OWNER]) * writer.blocks
    requests: dict[str, list[int]] = {}
    tail_known = is_tail_known(scheduler)
    marked = writer.blocks if writer.blocks > SLICE_BLOCKS else 0
    for manager in managers:
        for name, held in list(manager.req_to_blocks.items()):
            if marked > SLICE_BLOCKS:
                yield
                marked = 0
            marked += len(held)
            _mark(owners, requests, writer.request_rows, name, held)
    rows = [_make_row(scheduler, name, counts[1], tail_known) for name, counts in requests.items()]
    writer.put_map(bytes(states), owners.tobytes(), rows, first_step=first_step, last_step=writer.newest_step)


def _read_states(blocks: Any) -> bytes:
    return bytes(
        [
            (ring.USED if block.ref_cnt == 1 else ring.SHARED)
            if block.ref_cnt
            else (ring.FREE if block._block_hash is None else ring.REUSABLE)
            for block in blocks
        ]
    )


def _mark(owners: Any, requests: dict[str, list[int]], most: int, name: str, held: Any) -> None:
    """A block that several requests share is shown as the last one's."""
    row = requests.get(name)
    if row is None:
        if len(requests) >= most or not held:
            return
        row = requests[name] = [len(requests), 0]
    index = row[0]
    for block in held:
        if not block.is_null:
            owners[block.block_id] = index
            row[1] += 1


def _make_row(scheduler: Any, name: str, blocks: int, tail_known: bool) -> MapRequest:
    request = scheduler.requests.get(name)
    tokens = int(request.num_computed_tokens) if request is not None else 0
    tail = max(0, blocks * int(scheduler.block_size) - tokens) if tail_known and request is not None else -1
    return MapRequest(name, blocks, tokens, tail)


def is_tail_known(scheduler: Any) -> bool:
    """One group of full attention: only there the tokens of a request fill its blocks one after another."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    names = {each.__name__ for manager in managers for each in type(manager).__mro__}
    return (
        len(managers) == 1
        and "FullAttentionManager" in names
        and managers[0].block_size == scheduler.block_size
    )


def find_kv_bytes(scheduler: Any) -> int:
    """0 where the engine does not say."""
    tensors = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_tensors", None) or ()
    return sum(int(getattr(tensor, "size", 0)) for tensor in tensors)
