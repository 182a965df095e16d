"""Torch's caching allocator in this process: totals once a second, its segments when somebody asks. CUDA only.

Where devices belong to worker processes of the engine (several devices), the core holds none: see `ranks.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final

from sluice_engine import ring
from sluice_engine.ring import AllocatorFields, RingWriter

INTERVAL_NS: Final = 1_000_000_000
MAX_SEGMENTS, MAX_SEGMENT_BLOCKS = 2_000, 20_000
NO_CUDA: Final = "The engine's process holds no CUDA device."


class AllocatorProbe:
    """Writes totals into a ring, and segments to a file when the ring's reader asks for them."""

    def __init__(self, writer: RingWriter, segments_path: str) -> None:
        self._writer = writer
        self._path = segments_path
        self._cuda = find_cuda()
        self._read_ns = 0
        self._wish = writer.words[ring.SEGMENTS_WISH]

    def advance(self, now_ns: int) -> None:
        if self._writer.words[ring.SEGMENTS_WISH] != self._wish:
            self._wish = self._writer.words[ring.SEGMENTS_WISH]
            write_segments(self._path, self._cuda)
        if self._cuda is None or now_ns - self._read_ns < INTERVAL_NS:
            return
        before = time.thread_time_ns()
        self._read_ns = now_ns
        self._writer.put_allocator(read_totals(self._cuda.memory_stats(), now_ns))
        self._writer.add(ring.OWN_NS, time.thread_time_ns() - before)


def find_cuda() -> Any:
    """torch.cuda where this process has a context; None otherwise, without making one."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None


def read_totals(stats: Any, now_ns: int) -> AllocatorFields:
    def read(name: str) -> int:
        return int(stats.get(name, 0))

    return AllocatorFields(
        at_ns=now_ns,
        allocated_bytes=read("allocated_bytes.all.current"),
        reserved_bytes=read("reserved_bytes.all.current"),
        inactive_split_bytes=read("inactive_split_bytes.all.current"),
        active_bytes=read("active_bytes.all.current"),
        retries=read("num_alloc_retries"),
        out_of_memory=read("num_ooms"),
    )


def write_segments(path: str, cuda: Any) -> None:
    """Replaces the file beside the ring as a whole. Costs a step some milliseconds; only done when asked for."""
    found: dict[str, Any] = {"at_ns": time.monotonic_ns(), "absent": NO_CUDA}
    if cuda is not None:
        found = {"at_ns": time.monotonic_ns(), **shorten_segments(cuda.memory_snapshot())}
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w") as file:
        json.dump(found, file, separators=(",", ":"))
    os.rename(beside, path)


def shorten_segments(snapshot: Any) -> dict[str, Any]:
    """The largest segments with their blocks in the order of addresses; `left_out` counts those beyond the bound."""
    ordered = sorted(snapshot, key=lambda segment: -segment["total_size"])
    kept, blocks = [], 0
    for segment in ordered[:MAX_SEGMENTS]:
        rows = [[block["size"], block["state"]] for block in segment.get("blocks", ())]
        blocks += len(rows)
        if blocks > MAX_SEGMENT_BLOCKS:
            break
        sizes = {
            name: segment.get(name) for name in ("device", "total_size", "allocated_size", "active_size")
        }
        kept.append({**sizes, "kind": segment.get("segment_type", ""), "blocks": rows})
    return {"segments": kept, "left_out": len(ordered) - len(kept)}
