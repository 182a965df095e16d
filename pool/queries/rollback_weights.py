"""How much of its weight stable can have back, lane by lane, and what a rollback's plan gives it."""

from __future__ import annotations

from pool.domain.replica import Phase as ReplicaPhase
from pool.domain.rollout_plans import Split, largest_weight, split_of_rollback
from pool.models import Lane, Plan, Replica, Rollout, Scale


def split_of(plan: Plan) -> Split:
    return Split(_numbers(plan.weights), {lane: _numbers(weights) for lane, weights in plan.lanes.items()})


def stable_percents_of(rollout: Rollout) -> dict[str, int]:
    """By lane, "" where its replicas serve all: ready ones against those wished, 0 to 100. Without a wish: 100 if any
    is ready. Never empty."""
    wished = dict(
        Scale.objects.filter(release_id=rollout.stable_id, replicas__gt=0).values_list("lane", "replicas")
    )
    ready = list(
        Replica.objects.filter(
            release_id=rollout.stable_id, phase=ReplicaPhase.READY, routed=True
        ).values_list("lane", flat=True)
    )
    if not wished:
        return {"": 100 if ready else 0}
    return {lane: min(100, 100 * ready.count(lane) // replicas) for lane, replicas in wished.items()}


def rollback_split_of(rollout: Rollout, *, is_whole: bool = False) -> Split:
    """The weights that a rollback puts in force now. `is_whole`: whatever stable carries."""
    base = Plan.objects.get(model_id=rollout.model_id, number=rollout.base_plan)
    if is_whole:
        return split_of(base)
    now = Plan.objects.get(in_force__model=rollout.model_id)
    lanes = list(Lane.objects.filter(model_id=rollout.model_id).values_list("name", flat=True))
    return split_of_rollback(
        split_of(base), split_of(now), rollout.candidate.number, stable_percents_of(rollout), lanes
    )


def has_stable_grown(rollout: Rollout) -> bool:
    """Whether the candidate would have less, in some lane, by a plan that was written now."""
    now = split_of(Plan.objects.get(in_force__model=rollout.model_id))
    return rollback_split_of(rollout) != now and largest_weight(now, rollout.candidate.number) > 0


def given_back_percent_of(rollout: Rollout) -> int:
    """100 less the largest weight that the candidate has in the rollback's plan."""
    if rollout.rollback_plan is None:
        return 100
    plan = Plan.objects.get(model_id=rollout.model_id, number=rollout.rollback_plan)
    return 100 - largest_weight(split_of(plan), rollout.candidate.number)


def _numbers(weights: dict[str, int]) -> dict[int, int]:
    return {int(number): percent for number, percent in weights.items()}
