"""Nodes with their devices, measured memory by owner, and runtimes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from pool.models import Device, Node, Replica, Runtime
from pool.queries.ages import Age, age_of
from pool.queries.memory_bands import DeviceBands, build_bands

ON_DEVICE_PHASES = ("starting", "loading", "warming", "ready", "draining", "failed")


@dataclass(frozen=True)
class DeviceRow:
    node: str
    index: int
    uuid: str
    kind: str
    name: str
    compute_capability: str
    link_group: str
    usable: bool
    reason: str
    reason_text: str
    memory: DeviceBands
    processes: tuple[dict[str, object], ...]
    replicas: tuple[str, ...]
    """Ids of the replicas placed on it."""


@dataclass(frozen=True)
class RuntimeRow:
    node: str
    name: str
    kind: str
    version: str
    usable: bool
    reason_text: str
    quantizations: tuple[str, ...]
    kv_cache_dtypes: tuple[str, ...]
    block_sizes: tuple[int, ...]
    facts: dict[str, object]
    probed_at: datetime | None


@dataclass(frozen=True)
class NodeRow:
    name: str
    zone: str
    labels: dict[str, object]
    address: str
    host: str
    facts: dict[str, object]
    phase: str
    reason: str
    reason_text: str
    since: datetime
    wish: str
    """What an operator asked for: serve, cordon or drain."""
    lease: Age
    """When its worker last gave a sign of life."""
    lease_until: datetime | None
    created_at: datetime
    devices: tuple[DeviceRow, ...]
    runtimes: tuple[RuntimeRow, ...]
    replicas: tuple[str, ...]


def list_nodes(*, now: datetime, limit: int | None = None, offset: int = 0) -> tuple[NodeRow, ...]:
    """By name. 4 queries."""
    rows = Node.objects.select_related("lease").order_by("name")
    return _load_nodes(rows if limit is None else rows[offset : offset + limit], now=now)


def find_node(name: str, *, now: datetime) -> NodeRow | None:
    """At most 4 queries."""
    return next(iter(_load_nodes(Node.objects.select_related("lease").filter(name=name), now=now)), None)


def list_devices(*, now: datetime, limit: int = 500, offset: int = 0) -> tuple[DeviceRow, ...]:
    """2 queries."""
    rows = list(
        Device.objects.select_related("memory", "node").order_by("node__name", "index", "id")[
            offset : offset + limit
        ]
    )
    return _device_rows(rows, _replicas_by_node({row.node_id for row in rows}), now=now)


def list_runtimes(*, limit: int = 500, offset: int = 0) -> tuple[RuntimeRow, ...]:
    """1 query."""
    rows = Runtime.objects.select_related("node").order_by("node__name", "name")[offset : offset + limit]
    return tuple(_runtime_row(row) for row in rows)


def _load_nodes(rows: QuerySet[Node], *, now: datetime) -> tuple[NodeRow, ...]:
    nodes = list(rows)
    ids = {node.pk for node in nodes}
    placed = _replicas_by_node(ids)
    devices: dict[str, list[DeviceRow]] = defaultdict(list)
    found = (
        Device.objects.filter(node_id__in=ids).select_related("memory", "node").order_by("node_id", "index")
    )
    for device in _device_rows(found, placed, now=now):
        devices[device.node].append(device)
    runtimes: dict[str, list[RuntimeRow]] = defaultdict(list)
    for runtime in Runtime.objects.filter(node_id__in=ids).select_related("node").order_by("name"):
        runtimes[runtime.node.name].append(_runtime_row(runtime))
    return tuple(
        _node_row(
            node,
            devices=tuple(devices[node.name]),
            runtimes=tuple(runtimes[node.name]),
            replicas=tuple(replica.pk for replica in placed.get(node.pk, ())),
            now=now,
        )
        for node in nodes
    )


def _node_row(
    node: Node,
    *,
    devices: tuple[DeviceRow, ...],
    runtimes: tuple[RuntimeRow, ...],
    replicas: tuple[str, ...],
    now: datetime,
) -> NodeRow:
    lease = getattr(node, "lease", None)
    return NodeRow(
        name=node.name,
        zone=node.zone,
        labels=node.labels,
        address=node.address,
        host=node.host,
        facts=node.facts,
        phase=node.phase,
        reason=node.reason_code,
        reason_text=node.reason_text,
        since=node.phase_entered_at,
        wish=node.wish,
        lease=age_of(lease.renewed_at if lease else None, now=now),
        lease_until=lease.until if lease else None,
        created_at=node.created_at,
        devices=devices,
        runtimes=runtimes,
        replicas=replicas,
    )


def _replicas_by_node(node_ids: set[int]) -> dict[int, list[Replica]]:
    placed: dict[int, list[Replica]] = defaultdict(list)
    rows = Replica.objects.filter(node_id__in=node_ids, phase__in=ON_DEVICE_PHASES).order_by(
        "created_at", "id"
    )
    for row in rows.only("id", "node_id", "phase", "device_uuids", "figures", "reserved_bytes"):
        if row.node_id is not None:
            placed[row.node_id].append(row)
    return placed


def _device_rows(
    rows: Iterable[Device], placed: Mapping[int, list[Replica]], *, now: datetime
) -> tuple[DeviceRow, ...]:
    built = []
    for row in rows:
        here = [replica for replica in placed.get(row.node_id, ()) if row.uuid in replica.device_uuids]
        memory = getattr(row, "memory", None)
        built.append(
            DeviceRow(
                node=row.node.name,
                index=row.index,
                uuid=row.uuid,
                kind=row.kind,
                name=row.name,
                compute_capability=row.compute_capability,
                link_group=row.link_group,
                usable=row.usable,
                reason=row.reason_code,
                reason_text=row.reason_text,
                memory=build_bands(memory, here, now=now),
                processes=tuple(memory.processes) if memory else (),
                replicas=tuple(replica.pk for replica in here),
            )
        )
    return tuple(built)


def _runtime_row(row: Runtime) -> RuntimeRow:
    return RuntimeRow(
        node=row.node.name,
        name=row.name,
        kind=row.kind,
        version=row.version,
        usable=row.usable,
        reason_text=row.reason_text,
        quantizations=tuple(row.quantizations),
        kv_cache_dtypes=tuple(row.kv_cache_dtypes),
        block_sizes=tuple(row.block_sizes),
        facts=row.facts,
        probed_at=row.probed_at,
    )
