"""One click back, whatever moved the traffic: a rollout that runs is taken back, else the plan."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from pool.domain.rollout import Phase
from pool.models import Plan, Rollout
from pool.services import plans, rollouts
from pool.services.audit import Actor

_WEIGHTED = (Phase.STEPPING, Phase.HOLDING, Phase.ROLLING_BACK)


def roll_back_model(
    model_name: str, *, to_plan: int | None, actor: Actor, now: datetime
) -> tuple[Plan, bool]:
    """Returns the plan in force and whether this call wrote it. A repeated click changes nothing."""
    with transaction.atomic():
        model = plans.lock_model(model_name)
        active = rollouts.find_active(model)
        if to_plan is None and active is not None and _is_weighted(active):
            _, changed = rollouts.roll_back(active.pk, actor=actor, now=now)
            return Plan.objects.get(in_force__model=model), changed
        return plans.roll_back(model_name, to_plan=to_plan, actor=actor)


def _is_weighted(rollout: Rollout) -> bool:
    return rollout.phase in _WEIGHTED or (rollout.phase == Phase.PAUSED and rollout.resumes in _WEIGHTED)
