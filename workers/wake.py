"""The loops of this process, so that a task can wake them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pool.reconcilers.loop import Loop


@dataclass
class LoopSet:
    loops: list[Loop] = field(default_factory=list)

    def set_all(self) -> None:
        for loop in self.loops:
            loop.wake.set()


WAKE = LoopSet()
