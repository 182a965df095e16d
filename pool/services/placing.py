"""Gives a replica its place: node, devices, ports, generation + 1 and the start intent, in one transaction."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from django.db import IntegrityError, transaction

from pool.domain.placement import Placement
from pool.domain.replica import Phase
from pool.models import DeviceClaim, Intent, Node, PortReservation, Replica
from pool.queries.placement import engine_port_range
from pool.services.replicas import Because, Seen, move

INTERNAL_PORTS = 8
"""vLLM counts up from VLLM_PORT for its ranks' rendezvous; a block keeps engines apart."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def place_replica(at: Seen, placement: Placement, *, predicted: dict[str, object], now: datetime) -> bool:
    """False: someone was first, or a device or port was taken in between; the next pass looks again."""
    try:
        with transaction.atomic():
            return _place(at, placement, predicted, now)
    except IntegrityError:
        return False


def _place(at: Seen, placement: Placement, predicted: dict[str, object], now: datetime) -> bool:
    node = Node.objects.select_for_update().get(name=placement.node)
    generation = at.generation + 1
    port = None
    if node.address not in LOOPBACK:
        port = _reserve_ports(node, at.id, generation, count=1, purpose="http")[0]
    if len(placement.devices) > 1:
        _reserve_ports(node, at.id, generation, count=INTERNAL_PORTS, purpose="internal")
    DeviceClaim.objects.bulk_create(
        DeviceClaim(node=node, device_uuid=uuid, replica_id=at.id, generation=generation, created_at=now)
        for uuid in placement.devices
    )
    moved = move(
        at,
        Phase.STARTING,
        because=Because("placed", placement.reason),
        now=now,
        generation=generation,
        node=node,
        device_uuids=list(placement.devices),
        address=_address(node, at.id, generation, port),
        port=port,
        engine="unseen",
        reserved_bytes=placement.bytes_per_device,
        placement_reason=placement.reason,
        figures={"predicted": predicted},
        log_tail="",
        stage="",
        max_model_len=None,
    )
    if moved is None:
        raise IntegrityError("the replica has moved since")
    Intent.objects.create(node=node, replica_id=at.id, generation=generation, action="start", created_at=now)
    return True


def _address(node: Node, replica_id: str, generation: int, port: int | None) -> str:
    """A Unix socket for a node that only this host's gateways reach, else the node's address and a reserved port."""
    if port is None:
        return f"unix:{node.facts.get('run_dir', '/tmp')}/e/{replica_id}.{generation}.sock"
    host = f"[{node.address}]" if ":" in node.address else node.address
    return f"http://{host}:{port}"


def pick_other_ports(at: Seen, *, busy: frozenset[int]) -> bool:
    """New ports for a start whose own a stranger holds, which is no fault of the release (FC-32).

    False: the replica has moved since, or the node has no free port.
    """
    try:
        with transaction.atomic():
            return _pick_other_ports(at, busy)
    except IntegrityError:
        return False


def _pick_other_ports(at: Seen, busy: frozenset[int]) -> bool:
    replica = Replica.objects.filter(pk=at.id, generation=at.generation, phase=Phase.STARTING).first()
    if replica is None or replica.node_id is None:
        return False
    node = Node.objects.select_for_update().get(pk=replica.node_id)
    mine = PortReservation.objects.filter(replica=replica, generation=at.generation)
    counts = Counter(mine.values_list("purpose", flat=True))
    mine.delete()
    port = None
    for purpose, count in counts.items():
        run = _reserve_ports(node, at.id, at.generation, count=count, purpose=purpose, busy=busy)
        port = run[0] if purpose == "http" else port
    address = _address(node, at.id, at.generation, port)
    return bool(
        Replica.objects.filter(pk=at.id, generation=at.generation, phase=Phase.STARTING).update(
            port=port, address=address
        )
    )


def _reserve_ports(
    node: Node,
    replica_id: str,
    generation: int,
    *,
    count: int,
    purpose: str,
    busy: frozenset[int] = frozenset(),
) -> list[int]:
    """The lowest free run of ports; the node's row is locked. Raises IntegrityError when there is none."""
    first, last = engine_port_range(node)
    taken = busy | set(PortReservation.objects.filter(node=node).values_list("port", flat=True))
    for start in range(first, last - count + 2):
        run = range(start, start + count)
        if taken.isdisjoint(run):
            PortReservation.objects.bulk_create(
                PortReservation(
                    node=node, port=port, replica_id=replica_id, generation=generation, purpose=purpose
                )
                for port in run
            )
            return list(run)
    raise IntegrityError(f"node {node.name} has no {count} free ports in a row")
