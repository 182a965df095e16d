"""What placement looks at: nodes with their devices, in a fixed number of queries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from pool.domain.node import NodePhase
from pool.domain.placement import DeviceView, ForeignUse, NodeView
from pool.models import Device, DeviceClaim, Node, PortReservation, Replica, Runtime, VersionPresence

STALE_AFTER = timedelta(seconds=15)
"""Measured every second; older figures say nothing about now."""
_HOLDING = ("starting", "loading", "warming", "ready", "draining")
_RESERVING = ("starting", "loading")


@dataclass
class Inventory:
    """The pool at one moment. `view_for` makes the views of one release's replica from it."""

    now: datetime
    nodes: list[Node]
    runtimes: dict[int, dict[str, Runtime]]
    present: set[tuple[int, int]]
    devices: dict[int, list[Device]]
    replicas: list[Replica]
    claims: dict[tuple[int, str], str]
    ports_used: dict[int, int]
    kinds: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _by_node(self) -> dict[int | None, list[Replica]]:
        found: dict[int | None, list[Replica]] = defaultdict(list)
        for replica in self.replicas:
            found[replica.node_id].append(replica)
        return found

    def view_for(self, row: Replica) -> list[NodeView]:
        return [self._view(node, row) for node in self.nodes]

    def runtime_kind(self, name: str) -> str | None:
        """`vllm` or `sim`; None while no node has such a runtime."""
        return self.kinds.get(name)

    def device_kind(self, runtime: str) -> str:
        """The platform that the runtime was built for; a simulated engine takes what there is."""
        for node in self.nodes:
            found = self.runtimes[node.pk].get(runtime)
            if found is None:
                continue
            platform = found.facts.get("platform")
            if found.kind != "sim" and platform in ("cpu", "cuda"):
                return str(platform)
            if self.devices[node.pk]:
                return self.devices[node.pk][0].kind
        return "cpu"

    def device_size(self, node_name: str, uuid: str) -> int | None:
        """Total bytes of a device; None while it was not measured."""
        for node in self.nodes:
            for device in self.devices[node.pk]:
                if node.name == node_name and device.uuid == uuid and hasattr(device, "memory"):
                    return device.memory.total_bytes
        return None

    def _view(self, node: Node, row: Replica) -> NodeView:
        here = self._by_node.get(node.pk, [])
        same = [r for r in here if r.release_id == row.release_id and r.lane == row.lane]
        return NodeView(
            name=node.name,
            zone=node.zone,
            phase=NodePhase(node.phase),
            runtimes=frozenset(name for name, runtime in self.runtimes[node.pk].items() if runtime.usable),
            has_version=(node.pk, row.release.version_id) in self.present
            or self.runtime_kind(row.release.runtime) == "sim",
            devices=tuple(self._device(node, device, row) for device in self.devices[node.pk]),
            replicas_of_release=len(same),
            has_free_port=self.ports_used[node.pk] < _range_size(node),
        )

    def _device(self, node: Node, device: Device, row: Replica) -> DeviceView:
        memory = getattr(device, "memory", None)
        fresh = memory is not None and memory.measured_at > self.now - STALE_AFTER
        here = [r for r in self._by_node.get(node.pk, []) if device.uuid in r.device_uuids and r.pk != row.pk]
        claimed_by = self.claims.get((node.pk, device.uuid))
        unusable = "" if device.usable else device.reason_text or device.reason_code
        if not unusable and claimed_by not in (None, row.pk):
            unusable = f"replica {claimed_by} is starting on it, one start at a time"
        return DeviceView(
            id=device.uuid,
            kind="cuda" if device.kind == "cuda" else "cpu",
            total_bytes=memory.total_bytes if memory is not None else 0,
            free_bytes=memory.free_bytes if memory is not None and fresh else None,
            reserved_bytes=sum(r.reserved_bytes or 0 for r in here if r.phase in _RESERVING),
            foreign=_foreign(memory.processes if memory is not None else []),
            nvlink_group=device.link_group or None,
            unusable_reason=unusable,
            replicas=len(here),
        )


def load_inventory(now: datetime) -> Inventory:
    inventory = Inventory(
        now=now,
        nodes=list(Node.objects.order_by("name")),
        runtimes=defaultdict(dict),
        present=set(VersionPresence.objects.filter(phase="present").values_list("node_id", "version_id")),
        devices=defaultdict(list),
        replicas=list(Replica.objects.filter(phase__in=_HOLDING)),
        claims={(c.node_id, c.device_uuid): c.replica_id for c in DeviceClaim.objects.all()},
        ports_used=defaultdict(int),
    )
    for runtime in Runtime.objects.all():
        inventory.runtimes[runtime.node_id][runtime.name] = runtime
        inventory.kinds[runtime.name] = runtime.kind
    for device in Device.objects.select_related("memory").order_by("node_id", "index"):
        inventory.devices[device.node_id].append(device)
    for node_id in PortReservation.objects.values_list("node_id", flat=True):
        inventory.ports_used[node_id] += 1
    return inventory


def engine_port_range(node: Node) -> tuple[int, int]:
    first, last = node.facts.get("engine_ports") or (21000, 21999)
    return int(first), int(last)


def _range_size(node: Node) -> int:
    first, last = engine_port_range(node)
    return last - first + 1


def _foreign(processes: list[dict[str, object]]) -> tuple[ForeignUse, ...]:
    return tuple(
        ForeignUse(pid=int(str(p["pid"])), name=str(p.get("name") or ""), bytes=int(str(p["bytes"])))
        for p in processes
        if not p.get("ours") and p.get("bytes") is not None
    )
