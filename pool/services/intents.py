"""What a node was asked to do: claimed by one worker at a time, finished once."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.db.models import F, Q

from pool.models import Intent, Node


def list_open_intents(node: Node) -> list[Intent]:
    """Pending and claimed ones of current generations, oldest first."""
    return list(
        Intent.objects.filter(
            node=node, phase__in=["pending", "claimed"], generation=F("replica__generation")
        )
        .select_related("replica__release__version", "replica__release__model")
        .order_by("id")
    )


def claim_intent(intent: Intent, *, holder: uuid.UUID, now: datetime) -> bool:
    """True for the worker that may carry it out. A worker that died leaves its claim to the node's next one."""
    return bool(
        Intent.objects.filter(pk=intent.pk, generation=F("replica__generation"))
        .filter(Q(phase="pending") | (Q(phase="claimed") & ~Q(claimed_by=holder)))
        .update(phase="claimed", claimed_by=holder, claimed_at=now)
    )


def finish_intent(
    intent: Intent, *, holder: uuid.UUID, now: datetime, result: str, failed: bool = False
) -> bool:
    return bool(
        Intent.objects.filter(pk=intent.pk, phase="claimed", claimed_by=holder).update(
            phase="failed" if failed else "done", done_at=now, result=result
        )
    )
