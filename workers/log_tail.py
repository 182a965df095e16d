"""Reads an engine's log while it grows and is rotated by copy and truncate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TAIL_BYTES = 32_768
WHOLE_BYTES = 1_048_576
"""A start prints 20 to 200 KB; what an engine printed at its start is in the first piece."""


@dataclass
class LogFollower:
    path: Path
    size: int = -1

    @classmethod
    def at(cls, path: str) -> LogFollower:
        return cls(Path(path))

    def poll(self) -> bool:
        """True if the log has changed since the last call."""
        size = self._size()
        changed = size != self.size
        self.size = size
        return changed

    def tail(self) -> str:
        """The last 32 KB in whole lines; empty when there is no log."""
        try:
            with self.path.open("rb") as log:
                log.seek(max(0, self._size() - TAIL_BYTES))
                content = log.read(TAIL_BYTES)
        except OSError:
            return ""
        text = content.decode(errors="replace").replace("\0", "")
        return text.partition("\n")[2] if len(content) == TAIL_BYTES else text

    def read_all(self) -> str:
        """From the beginning, at most 1 MB."""
        try:
            with self.path.open("rb") as log:
                return log.read(WHOLE_BYTES).decode(errors="replace").replace("\0", "")
        except OSError:
            return ""

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0
