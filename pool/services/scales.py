"""Makes the rows of replicas match a scale: missing ones are created, surplus ones told to end."""

from __future__ import annotations

import secrets
from datetime import datetime

from django.db import transaction

from pool.domain.replica import Phase
from pool.domain.victims import Victim, pick_victims
from pool.models import Replica, Scale

_ID_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 10


def match_scale(scale_id: int, *, now: datetime) -> int:
    """Returns how many rows it touched. The scale's row is the lock: two loops cannot both create."""
    with transaction.atomic():
        scale = Scale.objects.select_for_update().filter(pk=scale_id).first()
        if scale is None:
            return 0
        rows = list(Replica.objects.filter(release_id=scale.release_id, lane=scale.lane, wish="run"))
        surplus = len(rows) - scale.replicas
        if surplus > 0:
            victims = pick_victims((_victim(row) for row in rows), count=surplus)
            return Replica.objects.filter(pk__in=victims).update(wish="stop")
        for _ in range(-surplus):
            Replica.objects.create(
                id=make_id(),
                release_id=scale.release_id,
                lane=scale.lane,
                phase_entered_at=now,
                created_at=now,
            )
    return max(0, -surplus)


def make_id() -> str:
    return "r" + "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))


def _victim(row: Replica) -> Victim:
    running = row.load.get("running")
    return Victim(id=row.pk, phase=Phase(row.phase), in_flight=running if isinstance(running, int) else None)
