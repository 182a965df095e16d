"""One save of the lanes editor: lanes and the replicas wished for them, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import transaction

from pool.services.audit import Actor
from pool.services.catalog import set_scale
from pool.services.lanes import LaneWish, set_lanes


def edit_lanes(
    model_name: str, lanes: Sequence[LaneWish], *, scales: Mapping[tuple[int, str], int], actor: Actor
) -> None:
    """`scales`: (release, lane) → replicas. An audit row for the lanes, and one for each scale."""
    with transaction.atomic():
        set_lanes(model_name, lanes, actor=actor)
        for (release, lane), replicas in scales.items():
            set_scale(model_name, release, replicas=replicas, lane=lane, actor=actor)
