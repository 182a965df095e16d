"""What the gateway processes tell each other five times a second: loads, lanes, breakers, retries, poison hashes.

Pure state: `write` gives this process' entry, `absorb` takes everybody's. Delivery carries them through Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

FRESH_S = 1.0
"""An older entry says nothing about loads any more."""
COUNTED_S = 3.0
"""A process that was silent for so long is no longer counted."""


class SharedView:
    def __init__(self, gateway_id: str, *, processes: int = 1) -> None: ...

    def provide(self, section: str, read: Callable[[float], Any]) -> None:
        """`read(now_s)` gives a JSON value that goes into each entry of this process under `section`."""

    def provide_loads(self, read: Callable[[], Mapping[tuple[str, int], tuple[int, int]]]) -> None:
        """Replica and generation → requests and tokens in flight here; only those that have any."""

    @property
    def process_count(self) -> int:
        """Live gateway processes, this one included; the last known number while Redis is silent."""
        raise NotImplementedError

    def is_fresh(self, now_s: float) -> bool:
        """Redis answered within the last second: `others` and `sections` hold."""
        raise NotImplementedError

    def others(self, replica_id: str, generation: int) -> tuple[int, int]:
        """Requests and tokens that the other processes have in flight there. (0, 0) also while nothing is known."""
        raise NotImplementedError

    def sections(self, name: str, now_s: float) -> Iterator[tuple[str, Any]]:
        """Gateway id and what it told under this name, of the other processes with a fresh entry."""
        raise NotImplementedError
