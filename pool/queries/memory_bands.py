"""Who holds a device's memory, in short: bands from what was measured and from what the replicas on it printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from pool.domain.memory_map import Holding, Measured, MemoryOwner, split_device
from pool.models import DeviceMemory, Replica
from pool.queries.ages import Age, age_of

STARTING_PHASES = ("starting", "loading")


class BandOwner(StrEnum):
    WEIGHTS = "weights"
    """A replica's weights, as its engine printed them."""
    KV_CACHE = "kv_cache"
    """A replica's KV cache, as its engine printed it."""
    ENGINE_OTHER = "engine_other"
    """Measured as ours beyond weights and KV cache: activations, graphs, libraries."""
    RESERVED = "reserved"
    """Free now, but promised to a replica that starts."""
    FOREIGN = "foreign"
    """Held by processes that Sluice did not start."""
    FREE = "free"


@dataclass(frozen=True)
class Band:
    owner: BandOwner
    size_bytes: int
    ratio: float
    replica: str | None = None
    """Id of the replica that holds it; None: not tied to one."""


@dataclass(frozen=True)
class DeviceBands:
    """The bands add up to the total. Without a measurement there are none and every figure is None."""

    total_bytes: int | None
    free_bytes: int | None
    ours_bytes: int | None
    foreign_bytes: int | None
    reserved_bytes: int
    """What starting replicas are promised on this device, measured or not."""
    measured: Age
    bands: tuple[Band, ...]


def build_bands(memory: DeviceMemory | None, replicas: Sequence[Replica], *, now: datetime) -> DeviceBands:
    """`replicas` are those placed on it. Printed figures never take more than was measured as ours."""
    reserved = sum(_reserved_bytes(replica) for replica in replicas)
    if memory is None:
        return DeviceBands(None, None, None, None, reserved, age_of(None, now=now), ())
    measured = Measured(memory.total_bytes, memory.free_bytes, memory.ours_bytes)
    parts = split_device(measured, [_holding(replica) for replica in replicas])
    return DeviceBands(
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        ours_bytes=memory.ours_bytes,
        foreign_bytes=memory.foreign_bytes,
        reserved_bytes=reserved,
        measured=age_of(memory.measured_at, now=now),
        bands=tuple(
            Band(
                _BANDS[part.owner],
                part.size_bytes,
                round(part.size_bytes / memory.total_bytes, 6),
                part.replica,
            )
            for part in parts
        ),
    )


def _holding(replica: Replica) -> Holding:
    return Holding(
        replica=replica.pk,
        weights_bytes=_figure_bytes(replica, "model_memory_bytes"),
        kv_bytes=_figure_bytes(replica, "kv_cache_bytes"),
        promised_bytes=float(_reserved_bytes(replica)),
    )


def _figure_bytes(replica: Replica, name: str) -> int:
    printed = replica.figures.get("printed")
    value = printed.get(name) if isinstance(printed, dict) else replica.figures.get(name)
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def _reserved_bytes(replica: Replica) -> int:
    return (replica.reserved_bytes or 0) if replica.phase in STARTING_PHASES else 0


_BANDS: Final = {
    MemoryOwner.WEIGHTS: BandOwner.WEIGHTS,
    MemoryOwner.KV_UNSPLIT: BandOwner.KV_CACHE,
    MemoryOwner.ENGINE_OTHER: BandOwner.ENGINE_OTHER,
    MemoryOwner.PROMISED: BandOwner.RESERVED,
    MemoryOwner.FOREIGN: BandOwner.FOREIGN,
    MemoryOwner.FREE: BandOwner.FREE,
}
"""Only those that a printed figure leads to; what is in a KV cache is told by `device_memory.py`."""
