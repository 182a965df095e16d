"""One click back, whatever moved the traffic: a rollout that runs is taken back, else the plan."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from pool.models import Plan
from pool.services import plans, rollouts
from pool.services.audit import Actor
from pool.services.beside_rollouts import find_moving


def roll_back_model(
    model_name: str, *, to_plan: int | None, actor: Actor, now: datetime, accept_outage: bool = False
) -> tuple[Plan, bool]:
    """Returns the plan in force and whether this call wrote it. A repeated click changes nothing. `accept_outage`: put
    an older plan back although none of its releases has a ready replica."""
    with transaction.atomic():
        model = plans.lock_model(model_name)
        moving = find_moving(model)
        if to_plan is None and moving is not None:
            _, changed = rollouts.roll_back(moving.pk, actor=actor, now=now)
            return Plan.objects.get(in_force__model=model), changed
        return plans.roll_back_locked(
            model, to_plan=to_plan, actor=actor, beside=moving, accept_outage=accept_outage
        )
