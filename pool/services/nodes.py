"""Registers nodes and what is on them, renews leases, and moves a node's phase."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction

from pool.domain.names import check_name
from pool.domain.node import MOVES, MoveNode, NodePhase
from pool.models import Device, DeviceMemory, Node, NodeLease, Runtime
from pool.ports import DeviceFacts, RuntimeFacts, RuntimeRef
from pool.services.audit import loop_actor, record

LEASE_LENGTH = timedelta(seconds=10)
"""Renewed every second: nine lost renewals make a node unreachable."""


@dataclass(frozen=True)
class NodeIdentity:
    name: str
    host: str
    address: str
    zone: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)


class LeaseHeld(Exception):
    """Another worker with this node's name is alive."""


def register_node(identity: NodeIdentity, *, holder: uuid.UUID, now: datetime) -> Node:
    """Creates or refreshes the node and takes its lease. Raises LeaseHeld while another worker's is valid."""
    check_name("node", identity.name)
    with transaction.atomic():
        node, created = Node.objects.select_for_update().get_or_create(name=identity.name)
        held = NodeLease.objects.filter(node=node, until__gt=now).exclude(holder=holder).first()
        if held is not None and not _is_dead_predecessor(node, identity):
            raise LeaseHeld(f"node {identity.name} is held by another worker until {held.until.isoformat()}")
        node.host, node.address, node.zone = identity.host, identity.address, identity.zone
        node.labels, node.facts = identity.labels, identity.facts
        node.save(update_fields=["host", "address", "zone", "labels", "facts"])
        NodeLease.objects.update_or_create(
            node=node, defaults={"holder": holder, "renewed_at": now, "until": now + LEASE_LENGTH}
        )
        if created:
            record(loop_actor(f"node/{identity.name}"), "node.register", subject=f"node/{identity.name}")
    return node


def _is_dead_predecessor(node: Node, identity: NodeIdentity) -> bool:
    """A worker that was killed on this very host is seen to be dead; its lease need not run out."""
    pid = node.facts.get("worker_pid")
    return node.host == identity.host and isinstance(pid, int) and not os.path.exists(f"/proc/{pid}")


def renew_lease(node: Node, *, holder: uuid.UUID, now: datetime) -> bool:
    """False if another worker holds the node's name now."""
    return bool(
        NodeLease.objects.filter(node=node, holder=holder).update(renewed_at=now, until=now + LEASE_LENGTH)
    )


def release_lease(node: Node, *, holder: uuid.UUID, now: datetime) -> None:
    NodeLease.objects.filter(node=node, holder=holder).update(until=now)


def store_runtime(
    node: Node, ref: RuntimeRef, facts: RuntimeFacts | None, *, problem: str, now: datetime
) -> None:
    """What the probe found; `facts` None: the probe failed and `problem` says why."""
    values: dict[str, object] = {"kind": ref.kind, "interpreter": ref.interpreter, "probed_at": now}
    if facts is None:
        values |= {"usable": False, "reason_text": problem}
    else:
        values |= {
            "usable": True,
            "reason_text": "",
            "version": facts.version,
            "quantizations": list(facts.quantizations),
            "kv_cache_dtypes": list(facts.kv_cache_dtypes),
            "block_sizes": list(facts.block_sizes),
            "facts": {
                "platform": facts.platform,
                "python_version": facts.python_version,
                "torch_version": facts.torch_version,
                "default_block_size": facts.default_block_size,
                "cpu_flags": list(facts.cpu_flags),
                "fastest_dtype": facts.fastest_dtype,
            },
        }
    Runtime.objects.update_or_create(node=node, name=ref.name, defaults=values)


def store_devices(node: Node, devices: Sequence[DeviceFacts]) -> None:
    """The inventory; a device that is no longer listed is kept and marked unusable."""
    with transaction.atomic():
        known = {device.uuid: device for device in Device.objects.filter(node=node)}
        for facts in devices:
            values = _device_values(facts)
            row = known.pop(facts.uuid, None)
            if row is None:
                Device.objects.create(node=node, uuid=facts.uuid, **values)
            elif any(getattr(row, name) != value for name, value in values.items()):
                Device.objects.filter(pk=row.pk).update(**values)
        for row in known.values():
            if row.usable:
                Device.objects.filter(pk=row.pk).update(
                    usable=False,
                    reason_code="device_gone",
                    reason_text="The driver does not list it any more.",
                )


def _device_values(facts: DeviceFacts) -> dict[str, object]:
    capability = facts.compute_capability
    return {
        "index": facts.index,
        "kind": facts.kind,
        "name": facts.name,
        "compute_capability": "" if capability is None else f"{capability[0]}.{capability[1]}",
        "link_group": "" if facts.link_group is None else str(facts.link_group),
        "usable": facts.usable,
        "reason_code": "" if facts.usable else "driver_fault",
        "reason_text": facts.reason,
    }


def store_memory(node: Node, devices: Sequence[DeviceFacts], *, ours: frozenset[int], now: datetime) -> None:
    """The measured bands. `ours`: pids of this installation's engines; every other process is foreign."""
    rows = {device.uuid: device for device in Device.objects.filter(node=node)}
    for facts in devices:
        row = rows.get(facts.uuid)
        if row is None or facts.memory_total_bytes is None or facts.memory_free_bytes is None:
            continue
        own = sum(p.used_bytes or 0 for p in facts.processes if p.pid in ours)
        used = facts.memory_used_bytes or 0
        values: dict[str, object] = {
            "total_bytes": facts.memory_total_bytes,
            "free_bytes": facts.memory_free_bytes,
            "ours_bytes": own,
            "foreign_bytes": max(0, used - own),
            "processes": [
                {"pid": p.pid, "bytes": p.used_bytes, "name": p.name, "ours": p.pid in ours}
                for p in facts.processes
            ],
            "measured_at": now,
        }
        # One statement a second and device; two workers never measure one device.
        if not DeviceMemory.objects.filter(device=row).update(**values):
            DeviceMemory.objects.create(device=row, **values)


def move_node(node: Node, decision: MoveNode, *, now: datetime) -> bool:
    """By compare-and-set on the phase that the decision was made on."""
    if decision.to not in MOVES[NodePhase(node.phase)]:
        raise ValueError(f"a node does not go from {node.phase} to {decision.to}")
    with transaction.atomic():
        moved = Node.objects.filter(pk=node.pk, phase=node.phase).update(
            phase=decision.to, reason_code=decision.code, reason_text=decision.reason, phase_entered_at=now
        )
        if moved:
            record(
                loop_actor("nodes"),
                f"node.{decision.to}",
                subject=f"node/{node.name}",
                reason=decision.reason,
            )
    return bool(moved)


def show_reason(node: Node, code: str, text: str) -> None:
    """Why the node stays in its phase; void when the phase has moved."""
    Node.objects.filter(pk=node.pk, phase=node.phase).update(reason_code=code, reason_text=text)


def store_facts(node: Node, **facts: object) -> None:
    """Merged into what is known of the host."""
    node.facts = node.facts | facts
    Node.objects.filter(pk=node.pk).update(facts=node.facts)
