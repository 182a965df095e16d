"""Free memory of the pool, the largest engine that fits onto one device, and which move would make room for more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

MOST_MOVED: Final = 2
MOST_CONSIDERED: Final = 12
"""Replicas per device that the search looks at, the smallest first: bounds it to 78 sets a device."""
WORTH_A_SECOND: Final = 1.25
"""Two moves are only named where they make this many times the room that the best single one does."""
LEAST_GAIN_BYTES: Final = 2**28
"""A gain below is none: free memory of a device breathes by so much."""


@dataclass(frozen=True)
class Tenant:
    """A replica that could run elsewhere: on one device, routed, not about to leave."""

    replica: str
    size_bytes: int
    runtime: str
    """A device that does not have it cannot take the replica."""


@dataclass(frozen=True)
class DeviceRoom:
    """`free_bytes`: measured free without what is promised to starts. Only usable devices of nodes that serve."""

    id: str
    node: str
    kind: str
    free_bytes: int
    runtimes: frozenset[str]
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True)
class Move:
    replica: str
    source: str
    target: str
    size_bytes: int


@dataclass(frozen=True)
class Room:
    """`moves` empty: no move makes more room. Sizes in bytes; an engine that spans devices fits more than this."""

    free_bytes: int
    largest_fit_bytes: int
    largest_device: str | None
    """Where it is; None: there is no device that could take anything."""
    moves: tuple[Move, ...] = ()
    fit_after_bytes: int | None = None
    """The largest fit once the moves are done."""


def find_room(devices: Sequence[DeviceRoom]) -> Room:
    """A move keeps the replica's size (true for the KV cache only where its profile or the devices are alike)."""
    if not devices:
        return Room(0, 0, None)
    largest = max(devices, key=lambda device: device.free_bytes)
    moves, after = _best_moves(devices, largest.free_bytes)
    return Room(
        free_bytes=sum(device.free_bytes for device in devices),
        largest_fit_bytes=largest.free_bytes,
        largest_device=largest.id,
        moves=moves,
        fit_after_bytes=after if moves else None,
    )


def _best_moves(devices: Sequence[DeviceRoom], now_bytes: int) -> tuple[tuple[Move, ...], int]:
    targets = _Targets(devices)
    best: tuple[Move, ...] = ()
    best_bytes = now_bytes
    for count in range(1, MOST_MOVED + 1):
        needed = now_bytes + LEAST_GAIN_BYTES if not best else best_bytes * WORTH_A_SECOND
        found = _first_that_fits(devices, targets, count=count, needed_bytes=needed)
        if found is not None:
            best, best_bytes = found
    return best, best_bytes


def _first_that_fits(
    devices: Sequence[DeviceRoom], targets: _Targets, *, count: int, needed_bytes: float
) -> tuple[tuple[Move, ...], int] | None:
    """`count` moves off one device after which it has the most room; with equal room those that move least."""
    candidates = [
        (source.free_bytes + sum(tenant.size_bytes for tenant in chosen), source, chosen)
        for source in devices
        for chosen in combinations(_movable(source), count)
    ]
    wished = [candidate for candidate in candidates if candidate[0] >= needed_bytes]
    for after, source, chosen in sorted(wished, key=lambda one: (-one[0], one[0] - one[1].free_bytes)):
        moves = targets.place(source, chosen)
        if moves is not None:
            return moves, after
    return None


def _movable(source: DeviceRoom) -> list[Tenant]:
    return sorted(source.tenants, key=lambda tenant: (tenant.size_bytes, tenant.replica))[:MOST_CONSIDERED]


class _Targets:
    """Devices of each kind by free memory, so that the tightest one that fits is found by halving."""

    def __init__(self, devices: Sequence[DeviceRoom]) -> None:
        self._by_kind: dict[str, list[DeviceRoom]] = {}
        for device in sorted(devices, key=lambda device: (device.free_bytes, device.id)):
            self._by_kind.setdefault(device.kind, []).append(device)

    def place(self, source: DeviceRoom, chosen: Sequence[Tenant]) -> tuple[Move, ...] | None:
        """The largest first, each where it leaves the least. None: one of them fits nowhere."""
        taken: dict[str, int] = {}
        moves = []
        for tenant in sorted(chosen, key=lambda one: -one.size_bytes):
            target = self._tightest(source, tenant, taken)
            if target is None:
                return None
            taken[target.id] = taken.get(target.id, 0) + tenant.size_bytes
            moves.append(Move(tenant.replica, source.id, target.id, tenant.size_bytes))
        return tuple(moves)

    def _tightest(self, source: DeviceRoom, tenant: Tenant, taken: dict[str, int]) -> DeviceRoom | None:
        alike = self._by_kind[source.kind]
        first = bisect_left(alike, tenant.size_bytes, key=lambda device: device.free_bytes)
        for device in alike[first:]:
            room = device.free_bytes - taken.get(device.id, 0)
            if device.id != source.id and tenant.runtime in device.runtimes and room >= tenant.size_bytes:
                return device
        return None
