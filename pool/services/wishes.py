"""What an operator asks of replicas and nodes: the wish is stored, the loops make it true."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from pool.domain.replica import Phase
from pool.models import Node, Replica
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, not_found
from pool.services.unloading import refuse_unloading, refuse_unloading_node


def ask_drain(replica_id: str, *, actor: Actor, accept_overload: bool = False) -> Replica:
    """The replica finishes what runs and ends; the loop starts another one if the scale still asks for it.

    Raises Conflict if the rest could not carry the present demand, unless that is accepted; so do the others here.
    """
    with transaction.atomic():
        replica = _lock(replica_id)
        if replica.wish != "stop":
            if not accept_overload:
                refuse_unloading(replica, now=timezone.now())
            replica.wish = "stop"
            replica.save(update_fields=["wish"])
            record(actor, "replica.drain", subject=f"replica/{replica_id}", generation=replica.generation)
    return replica


def ask_restart(replica_id: str, *, actor: Actor, accept_overload: bool = False) -> Replica:
    """Drained and started again as its next generation; for a failed one: a new try now."""
    with transaction.atomic():
        replica = _lock(replica_id)
        if replica.wish == "stop":
            raise Conflict(
                f"Replica {replica_id} is on its way out and is not started again. Raise the scale instead.",
                phase=replica.phase,
            )
        if replica.phase not in (Phase.PENDING, Phase.DRAINING) and not replica.restart_asked:
            if not accept_overload:
                refuse_unloading(replica, now=timezone.now())
            replica.restart_asked = True
            replica.failed_starts, replica.crashes_at = 0, []
            replica.save(update_fields=["restart_asked", "failed_starts", "crashes_at"])
            record(actor, "replica.restart", subject=f"replica/{replica_id}", generation=replica.generation)
    return replica


def _lock(replica_id: str) -> Replica:
    rows = Replica.objects.select_for_update(of=("self",)).select_related("release__model")
    replica = rows.filter(pk=replica_id).first()
    if replica is None:
        raise not_found("replica", replica_id)
    return replica


def set_node_wish(name: str, wish: str, *, actor: Actor, accept_overload: bool = False) -> Node:
    """`serve`, `cordon` or `drain`; the node's phase follows within the loop's next pass."""
    with transaction.atomic():
        node = Node.objects.select_for_update().filter(name=name).first()
        if node is None:
            raise not_found("node", name)
        if node.wish != wish:
            if wish == "drain" and not accept_overload:
                refuse_unloading_node(node, now=timezone.now())
            before = node.wish
            node.wish = wish
            node.save(update_fields=["wish"])
            record(actor, f"node.{wish}", subject=f"node/{name}", before=before)
    return node
