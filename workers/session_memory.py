"""Resident size and major page faults of an engine's processes, from /proc: one cheap read for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pool.process_figures import read_process


@dataclass
class SessionMemory:
    """`rss_bytes`: the sum over the processes that could be read, None before any was. Pages that several share count
    for each; their proportional share is what the devices' page shows."""

    proc: str = "/proc"
    rss_bytes: int | None = None
    _faults: dict[tuple[int, int], int] = field(default_factory=dict)
    _increase: int | None = None
    _has_read: bool = False

    def read(self, pids: Iterable[int]) -> None:
        found = {pid: figures for pid in pids if (figures := read_process(pid, proc=self.proc))}
        if not found:
            self.rss_bytes = None
            return
        self.rss_bytes = sum(figures.rss_bytes for figures in found.values())
        faults = {(pid, one.started_ticks): one.major_faults for pid, one in found.items()}
        if self._has_read:
            # A process that came meanwhile began at none.
            self._increase = (self._increase or 0) + sum(
                max(0, count - self._faults.get(key, 0)) for key, count in faults.items()
            )
        self._faults, self._has_read = faults, True

    def take_major_faults(self) -> int | None:
        """Since the last call; None when nothing was read since, or there is nothing to compare it with."""
        taken, self._increase = self._increase, None
        return taken
