"""Who holds each device's memory, split down to the state of KV blocks, and how much room the pool has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pool.domain.memory_map import Holding, Measured, MemoryOwner, MemoryPart, split_device
from pool.domain.room import DeviceRoom, Tenant, find_room
from pool.models import Device, DeviceMemory, Replica, Runtime
from pool.queries.ages import Age, FigureState, age_of
from pool.queries.memory_map import ReplicaMemory, fill_of

RESERVING_PHASES = ("starting", "loading")
MOVABLE_PHASES = ("ready",)


@dataclass(frozen=True)
class DevicePart:
    owner: MemoryOwner
    size_bytes: int
    ratio: float
    """Of the device's total, 0 to 1."""
    replica: str | None
    """None: not tied to one."""


@dataclass(frozen=True)
class DeviceSplit:
    """The parts add up to the total. Without a measurement there are none, and sizes are None."""

    node: str
    index: int
    uuid: str
    kind: str
    name: str
    usable: bool
    reason_text: str
    total_bytes: int | None
    free_bytes: int | None
    measured: Age
    filled: Age
    """When the oldest of its KV caches told what is in it; absent: none did."""
    parts: tuple[DevicePart, ...]
    replicas: tuple[str, ...]
    untold: tuple[str, ...]
    """Replicas on it whose KV cache told nothing, so that it is not split."""


@dataclass(frozen=True)
class ReplicaMove:
    replica: str
    model: str
    source: str
    target: str
    """Devices as `node index`."""
    size_bytes: int


@dataclass(frozen=True)
class PoolRoom:
    """Only devices that can take a replica now. None: no device was measured."""

    free_bytes: int | None
    largest_fit_bytes: int | None
    largest_device: str | None
    moves: tuple[ReplicaMove, ...]
    """What to move so that the largest fit becomes `fit_after_bytes`; empty: nothing helps."""
    fit_after_bytes: int | None
    devices: int
    left_out: int
    """Devices that are unusable, not measured lately, or on nodes that take nothing."""


@dataclass(frozen=True)
class PoolMemory:
    devices: tuple[DeviceSplit, ...]
    room: PoolRoom


def load_pool_memory(replicas: Sequence[ReplicaMemory], *, now: datetime) -> PoolMemory:
    """`replicas`: all of the pool, as `load_memory` gives them. 3 queries."""
    rows = list(Device.objects.select_related("memory", "node").order_by("node__name", "index", "id"))
    told = {replica.id: replica for replica in replicas}
    stored = Replica.objects.filter(pk__in=told).select_related("release")
    wishes = {
        row.pk: _Wish(row.wish, row.reserved_bytes, row.release.runtime)
        for row in stored.only("wish", "reserved_bytes", "release__runtime")
    }
    here = _by_device(replicas)
    splits = [_split(row, here.get((row.node.name, row.uuid), []), wishes, now=now) for row in rows]
    room = _room(rows, splits, told, wishes)
    return PoolMemory(tuple(splits), room)


@dataclass(frozen=True)
class _Wish:
    wish: str
    reserved_bytes: int | None
    runtime: str


def _by_device(replicas: Sequence[ReplicaMemory]) -> dict[tuple[str, str], list[ReplicaMemory]]:
    here: dict[tuple[str, str], list[ReplicaMemory]] = {}
    for replica in replicas:
        for uuid in replica.device_uuids:
            here.setdefault((replica.node or "", uuid), []).append(replica)
    return here


def _split(
    row: Device, here: Sequence[ReplicaMemory], wishes: Mapping[str, _Wish], *, now: datetime
) -> DeviceSplit:
    memory: DeviceMemory | None = getattr(row, "memory", None)
    parts: tuple[MemoryPart, ...] = ()
    if memory is not None:
        measured = Measured(memory.total_bytes, memory.free_bytes, memory.ours_bytes)
        parts = split_device(measured, [_holding(replica, wishes.get(replica.id)) for replica in here])
    return DeviceSplit(
        node=row.node.name,
        index=row.index,
        uuid=row.uuid,
        kind=row.kind,
        name=row.name,
        usable=row.usable,
        reason_text=row.reason_text,
        total_bytes=memory.total_bytes if memory else None,
        free_bytes=memory.free_bytes if memory else None,
        measured=age_of(memory.measured_at if memory else None, now=now),
        filled=_oldest(here, now=now),
        parts=tuple(
            DevicePart(part.owner, part.size_bytes, _share(part, memory), part.replica) for part in parts
        ),
        replicas=tuple(replica.id for replica in here),
        untold=tuple(replica.id for replica in here if _holds_kv(replica) and fill_of(replica) is None),
    )


def _holding(replica: ReplicaMemory, wish: _Wish | None) -> Holding:
    idle = None
    if replica.reserved_bytes is not None and replica.allocated_bytes is not None:
        idle = max(0.0, replica.reserved_bytes - replica.allocated_bytes)
    promised = wish.reserved_bytes if wish and replica.phase in RESERVING_PHASES else None
    return Holding(
        replica=replica.id,
        weights_bytes=replica.weights_bytes,
        kv_bytes=replica.kv_bytes,
        fill=fill_of(replica),
        idle_bytes=idle,
        promised_bytes=float(promised or 0),
    )


def _holds_kv(replica: ReplicaMemory) -> bool:
    return bool(replica.kv_bytes) and replica.phase not in RESERVING_PHASES


def _oldest(here: Sequence[ReplicaMemory], *, now: datetime) -> Age:
    times = [replica.measured.at for replica in here if fill_of(replica) is not None and replica.measured.at]
    return age_of(min(times, default=None), now=now)


def _share(part: MemoryPart, memory: DeviceMemory | None) -> float:
    return round(part.size_bytes / memory.total_bytes, 6) if memory and memory.total_bytes else 0.0


def _room(
    rows: Sequence[Device],
    splits: Sequence[DeviceSplit],
    told: Mapping[str, ReplicaMemory],
    wishes: Mapping[str, _Wish],
) -> PoolRoom:
    runtimes = _load_runtimes()
    considered = [
        DeviceRoom(
            id=f"{row.node.name} {row.index}",
            node=row.node.name,
            kind=row.kind,
            free_bytes=_size_of(split, MemoryOwner.FREE),
            runtimes=frozenset(runtimes.get(row.node_id, ())),
            tenants=_tenants(split, told, wishes),
        )
        for row, split in zip(rows, splits, strict=True)
        if _takes_replicas(row, split)
    ]
    room = find_room(considered)
    return PoolRoom(
        free_bytes=room.free_bytes if considered else None,
        largest_fit_bytes=room.largest_fit_bytes if considered else None,
        largest_device=room.largest_device,
        moves=tuple(
            ReplicaMove(move.replica, told[move.replica].model, move.source, move.target, move.size_bytes)
            for move in room.moves
        ),
        fit_after_bytes=room.fit_after_bytes,
        devices=len(considered),
        left_out=len(rows) - len(considered),
    )


def _load_runtimes() -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for node, name in Runtime.objects.filter(usable=True).values_list("node_id", "name"):
        found.setdefault(node, set()).add(name)
    return found


def _takes_replicas(row: Device, split: DeviceSplit) -> bool:
    return row.usable and row.node.phase == "ready" and split.measured.state == FigureState.MEASURED


def _size_of(split: DeviceSplit, owner: MemoryOwner) -> int:
    return sum(part.size_bytes for part in split.parts if part.owner == owner)


def _tenants(
    split: DeviceSplit, told: Mapping[str, ReplicaMemory], wishes: Mapping[str, _Wish]
) -> tuple[Tenant, ...]:
    """Those that run on this device alone; what engines hold beyond weights and KV cache is shared out evenly."""
    other = _size_of(split, MemoryOwner.ENGINE_OTHER) // max(1, len(split.replicas))
    return tuple(
        Tenant(
            replica=identity,
            size_bytes=other + sum(part.size_bytes for part in split.parts if part.replica == identity),
            runtime=wishes[identity].runtime,
        )
        for identity in split.replicas
        if identity in wishes
        and wishes[identity].wish == "run"
        and told[identity].phase in MOVABLE_PHASES
        and len(told[identity].device_uuids) == 1
    )
