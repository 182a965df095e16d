"""What one click would take back, for many models at once: the rollout that moves the weights, or the plan in force."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F

from pool.domain.rollout import ACTIVE
from pool.models import Plan, Rollout
from pool.queries.plans import PlanRow, find_rollback_target, plan_row

PLANS_LOOKED_AT = 50
"""Before the one in force: a rollout writes some, and a target lies among the newest."""


@dataclass(frozen=True)
class ActiveRollout:
    id: str
    candidate: int
    stable: int
    phase: str
    resumes: str
    step: int
    steps: int
    base_plan: int
    had_weight: bool


@dataclass(frozen=True)
class TakeBack:
    """`rollout`: the active one, if any. `target`: the plan that one click puts back while no rollout is active; None:
    nothing is there to go back to, or the plan in force is a rollback itself."""

    rollout: ActiveRollout | None
    target: PlanRow | None


NOTHING = TakeBack(None, None)


def load_take_backs(model: str | None = None) -> dict[str, TakeBack]:
    """By model; of all of them, or of one. 2 queries."""
    active = Rollout.objects.filter(phase__in=ACTIVE).select_related("model", "candidate", "stable")
    plans = Plan.objects.filter(number__gte=F("model__in_force__plan__number") - PLANS_LOOKED_AT)
    if model is not None:
        active, plans = active.filter(model__name=model), plans.filter(model__name=model)
    rollouts = {row.model.name: _active(row) for row in active}
    by_model: dict[str, list[PlanRow]] = {}
    named = plans.annotate(model_name=F("model__name"), current=F("model__in_force__plan__number"))
    for plan in named.order_by("-number"):
        row = plan_row(plan, in_force=plan.current)
        by_model.setdefault(plan.model_name, []).append(row)
    return {
        name: TakeBack(rollouts.get(name), None if name in rollouts else _target(by_model.get(name, [])))
        for name in by_model.keys() | rollouts.keys()
    }


def _target(plans: list[PlanRow]) -> PlanRow | None:
    """`plans`: newest first. After a rollback there is nothing to take back."""
    current = next((plan for plan in plans if plan.in_force), None)
    return None if current is None or current.rollback_of is not None else find_rollback_target(plans)


def _active(row: Rollout) -> ActiveRollout:
    return ActiveRollout(
        id=row.pk,
        candidate=row.candidate.number,
        stable=row.stable.number,
        phase=row.phase,
        resumes=row.resumes,
        step=row.step,
        steps=len(row.steps),
        base_plan=row.base_plan,
        had_weight=row.weighted_at is not None,
    )
