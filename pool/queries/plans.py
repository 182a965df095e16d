"""Traffic plans: the one in force and the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pool.models import Plan


@dataclass(frozen=True)
class PlanRow:
    number: int
    weights: dict[str, int]
    """Release number → percent, sum 100."""
    lanes: dict[str, dict[str, int]]
    pins: dict[str, int]
    shadow: dict[str, object] | None
    rollback_of: int | None
    """The plan that this one goes back to."""
    rollout_base: int | None
    """The plan before the rollout that wrote this one; one click goes back there."""
    comment: str
    created_by: str
    created_at: datetime
    in_force: bool


def list_plans(model: str, *, limit: int = 500, offset: int = 0) -> tuple[PlanRow, ...]:
    """Newest first. 2 queries."""
    current = find_plan_in_force(model)
    rows = Plan.objects.filter(model__name=model).order_by("-number")[offset : offset + limit]
    return tuple(plan_row(row, in_force=current.number if current else None) for row in rows)


def find_plan_in_force(model: str) -> PlanRow | None:
    """1 query."""
    row = Plan.objects.filter(in_force__model__name=model).first()
    return None if row is None else plan_row(row, in_force=row.number)


def find_rollback_target(plans: Sequence[PlanRow]) -> PlanRow | None:
    """The plan that one click goes back to, as `services.plans.roll_back` finds it: the newest older one with other
    weights that no rollback has left and that is no step of a rollout. `plans`: newest first.
    """
    current = next((plan for plan in plans if plan.in_force), None)
    if current is None:
        return None
    left = {
        number
        for plan in plans
        if (start := plan.rollback_of or plan.rollout_base) is not None
        for number in range(start + 1, plan.number)
    }
    older = (plan for plan in plans if plan.number < current.number)
    return next((plan for plan in older if plan.number not in left and plan.weights != current.weights), None)


def plan_row(row: Plan, *, in_force: int | None) -> PlanRow:
    return PlanRow(
        number=row.number,
        weights=row.weights,
        lanes=row.lanes,
        pins=row.pins,
        shadow=row.shadow,
        rollback_of=row.rollback_of,
        rollout_base=row.rollout_base,
        comment=row.comment,
        created_by=row.created_by,
        created_at=row.created_at,
        in_force=row.number == in_force,
    )
