"""Allocator statistics of an engine with several devices: each is held by a worker process of its own.

A worker of rank n writes `allocator.<n>.ring` beside the step ring. An engine with one device needs none of this: its
core holds the device. Never raises into a step.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from typing import Any, Final

from sluice_engine import ring
from sluice_engine.allocator import AllocatorProbe, find_cuda

WORKER_BASE: Final = "vllm.v1.worker.worker_base"
# As vLLM 0.32 names them.
PROCESS_PREFIX: Final = "VllmWorker"
_MARK: Final = "_sluice_probe"


def follow_ranks() -> None:
    """Idempotent; does nothing while the workers' module is not imported."""
    wrapper = getattr(sys.modules.get(WORKER_BASE), "WorkerWrapperBase", None)
    if wrapper is None or hasattr(wrapper, _MARK):
        return
    original = wrapper.execute_model

    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        probe = self.__dict__.get(_MARK)
        if probe is None:
            probe = self.__dict__[_MARK] = make_probe(int(getattr(self, "global_rank", 0)))
        if probe:
            try:
                probe.advance(time.monotonic_ns())
            except Exception:
                self.__dict__[_MARK] = False
        return result

    setattr(wrapper, _MARK, False)
    wrapper.execute_model = execute_model


def make_probe(rank: int) -> AllocatorProbe | bool:
    """False where there is nothing to tell: the engine's core itself, and processes without CUDA."""
    path = os.environ.get(ring.RING_VARIABLE, "")
    if not path or not multiprocessing.current_process().name.startswith(PROCESS_PREFIX):
        return False
    with contextlib.suppress(Exception):
        if find_cuda() is not None:
            folder = os.path.dirname(path)
            own = os.path.join(folder, ring.RANK_NAME.format(rank))
            writer = ring.RingWriter(own, blocks=0, block_size=0, engine="", slots=(1, 1))
            return AllocatorProbe(writer, os.path.join(folder, ring.RANK_SEGMENTS_NAME.format(rank)))
    return False
