"""What one scheduler does, step by step, written into the ring. Runs in the engine core's own thread.

Its own thread time is measured at every 16th step and at every scan of the blocks: reading that clock is a system
call. The other clock (CLOCK_MONOTONIC) is none.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from sluice_engine import ring
from sluice_engine.allocator import AllocatorProbe
from sluice_engine.blocks import BlockScans, find_kv_bytes, is_tail_known
from sluice_engine.requests import RequestLog
from sluice_engine.ring import RingWriter, StepFields

SAMPLED_STEPS: Final = 16
# Steps under way at once: pipeline stages, or two of an asynchronous engine. Beyond it something was never answered.
MAX_UNDER_WAY: Final = 64


class StepLog:
    """Follows one scheduler. Methods may raise: their caller counts it."""

    def __init__(self, scheduler: Any, writer: RingWriter, path: str) -> None:
        self.writer = writer
        self._words = writer.words
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._usable_blocks = self._pool.num_gpu_blocks - 1
        self._requests = RequestLog(scheduler, writer)
        self._scans = BlockScans(scheduler, writer)
        self._allocator = AllocatorProbe(writer, os.path.join(os.path.dirname(path), ring.SEGMENTS_NAME))
        self._under_way: dict[int, tuple[Any, ...]] = {}
        self._ended = self._number = 0

    @classmethod
    def open(cls, scheduler: Any, path: str, *, engine: str) -> StepLog:
        """Raises OSError, and AttributeError for a scheduler of another make."""
        pool = scheduler.kv_cache_manager.block_pool
        for needed in (
            "schedule",
            "update_from_output",
            "requests",
            "finished_req_ids",
            "get_request_counts",
        ):
            getattr(scheduler, needed)
        writer = RingWriter(
            path,
            blocks=pool.num_gpu_blocks,
            block_size=int(scheduler.block_size),
            engine=engine,
            flags=0 if is_tail_known(scheduler) else ring.TAIL_UNKNOWN,
            max_sequences=int(getattr(scheduler, "max_num_running_reqs", 0)),
            kv_bytes=find_kv_bytes(scheduler),
        )
        return cls(scheduler, writer, path)

    def begin(self, started_ns: int) -> None:
        """Tells a step in progress; of several under way the oldest."""
        if not self._under_way:
            self._words[ring.IN_STEP_NS] = started_ns

    def note_scheduled(self, output: Any, started_ns: int) -> None:
        scheduled_ns = time.monotonic_ns()
        self._number += 1
        is_sampled = not self._number % SAMPLED_STEPS
        own = time.thread_time_ns() if is_sampled else 0
        if len(self._under_way) >= MAX_UNDER_WAY:
            self._under_way.clear()
        prefill = self._requests.note_scheduled(output, started_ns)
        total = output.total_num_scheduled_tokens
        sequences = len(output.num_scheduled_tokens)
        own = time.thread_time_ns() - own if is_sampled else 0
        self._under_way[id(output)] = (
            started_ns, scheduled_ns, total, sequences, prefill, len(output.preempted_req_ids or ()), is_sampled, own,
        )  # fmt: skip

    def note_updated(self, output: Any, begun_ns: int) -> None:
        ended_ns = time.monotonic_ns()
        known = self._under_way.pop(id(output), None)
        if known is None:
            return
        started_ns, scheduled_ns, total, sequences, prefill, preempted, is_sampled, own = known
        before = time.thread_time_ns() if is_sampled else 0
        words = self._words
        words[ring.IN_STEP_NS] = next(iter(self._under_way.values()))[0] if self._under_way else 0
        finished = self._requests.note_updated(ended_ns)
        running, waiting = self._scheduler.get_request_counts()
        used = self._usable_blocks - self._pool.get_num_free_blocks()
        busy_ns = ended_ns - max(started_ns, self._ended)
        self._ended = ended_ns
        words[ring.RUNNING], words[ring.WAITING], words[ring.USED_BLOCKS] = running, waiting, used
        if total:
            self.writer.put_step(
                StepFields(
                    started_ns,
                    scheduled_ns - started_ns,
                    begun_ns - scheduled_ns,
                    ended_ns - begun_ns,
                    busy_ns,
                    _find_kind(total, prefill.tokens),
                    prefill.tokens,
                    total - prefill.tokens,
                    prefill.sequences,
                    sequences - prefill.sequences,
                    running,
                    waiting,
                    preempted,
                    prefill.cached_tokens,
                    used,
                    finished,
                )
            )
            words[ring.STEP_NS] += busy_ns
        if is_sampled:
            self._note_own(SAMPLED_STEPS * (own + time.thread_time_ns() - before))
        self._scans.advance(ended_ns, busy_ns if total else 0, is_idle=not running and not waiting)
        self._allocator.advance(ended_ns)

    def _note_own(self, own_ns: int) -> None:
        self._words[ring.OWN_NS] += own_ns
        self._scans.note_step_cost(own_ns / SAMPLED_STEPS)


def _find_kind(total: int, prefill: int) -> int:
    if not prefill:
        return ring.DECODE
    return ring.PREFILL if prefill == total else ring.MIXED
