"""What the gateway processes tell each other five times a second: loads, lanes, breakers, retries, poison hashes.

State only: `write` gives this process' entry, `absorb` takes everybody's. `pool/gateway/sharing.py` carries them
through Redis. Ages count on the clock of Redis, so that hosts need not agree on the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

FRESH_S = 1.0
"""An older entry says nothing about loads any more."""
COUNTED_S = 3.0
"""A process that was silent for so long is no longer counted."""
FORGOTTEN_S = 10.0
"""Its entry is taken out of Redis."""

_BROKEN: dict[str, Any] = {"at_ms": 0, "loads": {}, "sections": {}}
Loads = Mapping[tuple[str, int], tuple[int, int]]
"""Replica and generation → requests and tokens in flight; only those that have any."""

_NOTHING = (0, 0)


class SharedView:
    """`processes`: how many at least are on their way up, counted until they have had time to appear."""

    def __init__(self, gateway_id: str, *, processes: int = 1) -> None:
        self.gateway_id = gateway_id
        self.process_count = processes
        """Live gateway processes, this one included; the last known number while Redis is silent."""
        self._expected = processes
        self._first_s: float | None = None
        self._providers: dict[str, Callable[[float], Any]] = {}
        self._read_loads: Callable[[], Loads] = dict
        self._others: dict[str, tuple[int, int]] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self._absorbed_at_s = float("-inf")

    # What this process tells.
    def provide(self, section: str, read: Callable[[float], Any]) -> None:
        """`read(now_s)` gives a JSON value that goes into each entry of this process under `section`."""
        self._providers[section] = read

    def provide_loads(self, read: Callable[[], Loads]) -> None:
        self._read_loads = read

    def write(self, redis_ms: int, now_s: float) -> bytes:
        loads = {f"{name} {generation}": load for (name, generation), load in self._read_loads().items()}
        sections = {name: read(now_s) for name, read in self._providers.items()}
        return orjson.dumps({"at_ms": redis_ms, "loads": loads, "sections": sections})

    # What the others told.
    def absorb(self, entries: Mapping[bytes, bytes], redis_ms: int, now_s: float) -> list[str]:
        """Takes all entries as Redis holds them. Returns the gateways whose entries are to be taken out."""
        fresh: dict[str, dict[str, Any]] = {}
        live, forgotten = 1, []
        for name, content in entries.items():
            gateway_id = name.decode()
            if gateway_id == self.gateway_id:
                continue
            entry = _read_entry(content)
            age_s = (redis_ms - entry["at_ms"]) / 1000
            live += age_s < COUNTED_S
            if age_s < FRESH_S:
                fresh[gateway_id] = entry
            elif age_s > FORGOTTEN_S:
                forgotten.append(gateway_id)
        self._entries = fresh
        self._others = _sum_loads(entry["loads"] for entry in fresh.values())
        self._absorbed_at_s = now_s
        self._count(live, now_s)
        return forgotten

    def _count(self, live: int, now_s: float) -> None:
        if self._first_s is None:
            self._first_s = now_s
        starting = now_s - self._first_s < COUNTED_S
        self.process_count = max(live, self._expected) if starting else live

    def is_fresh(self, now_s: float) -> bool:
        """Redis answered within the last second: `others` and `list_sections` hold."""
        return now_s - self._absorbed_at_s < FRESH_S

    def others(self, replica_id: str, generation: int) -> tuple[int, int]:
        """Requests and tokens that the other processes had in flight there; ask `is_fresh` whether that still holds."""
        return self._others.get(f"{replica_id} {generation}", _NOTHING)

    def list_sections(self, name: str, now_s: float) -> Iterator[tuple[str, Any]]:
        """Gateway id and what it told under this name, of the others; none while Redis is silent."""
        if self.is_fresh(now_s):
            for gateway_id, entry in self._entries.items():
                if name in entry["sections"]:
                    yield gateway_id, entry["sections"][name]

    def describe(self, now_s: float) -> dict[str, Any]:
        return {
            "processes": self.process_count,
            "fresh": self.is_fresh(now_s),
            "others": sorted(self._entries) if self.is_fresh(now_s) else [],
        }


def _read_entry(content: bytes) -> dict[str, Any]:
    """One of another version or a broken one counts as very old: its process is not counted, and it is taken out."""
    try:
        entry = orjson.loads(content)
        if isinstance(entry["at_ms"], int) and isinstance(entry["sections"], dict):
            _sum_loads([entry["loads"]])
            return dict(entry)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    return _BROKEN


def _sum_loads(told: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Raises TypeError, ValueError or AttributeError for what are no loads."""
    sums: dict[str, tuple[int, int]] = {}
    for loads in told:
        for name, (requests, tokens) in loads.items():
            before = sums.get(name)
            sums[name] = (requests, tokens) if before is None else (before[0] + requests, before[1] + tokens)
    return sums
