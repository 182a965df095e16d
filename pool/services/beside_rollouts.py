"""What a running rollout does not allow others to change. Reads only."""

from __future__ import annotations

from pool.domain.rollout import ACTIVE, Enter, Phase
from pool.models import Model, Plan, Release, Rollout, Scale
from pool.services.errors import Conflict

_MOVING = (Phase.STEPPING, Phase.HOLDING, Phase.ROLLING_BACK)


def refuse_plan_beside(model: Model) -> None:
    """Raises Conflict while a rollout moves the model's weights: two hands on one split help nobody."""
    moving = find_moving(model)
    if moving is not None:
        raise is_moved_by(moving, model)


def find_moving(model: Model) -> Rollout | None:
    """The rollout that sets the model's weights now."""
    active = Rollout.objects.filter(model=model, phase__in=ACTIVE).first()
    return active if active is not None and is_moving(active) else None


def is_moving(active: Rollout) -> bool:
    return active.phase in _MOVING or active.resumes in _MOVING


def find_other_plan(rollout: Rollout) -> Enter | None:
    """Before the first weight others may put a plan in force, one click back included. The rollout stands on the one
    from before, so that its first step would undo what they did: it ends instead."""
    if rollout.weighted_at is not None:
        return None
    plan = Plan.objects.filter(in_force__model=rollout.model_id).first()
    if plan is None or plan.number == rollout.base_plan:
        return None
    text = (
        f"Plan {plan.number} was put in force by {plan.created_by}; the rollout stands on plan {rollout.base_plan}. "
        "Nothing was sent to the candidate. Start it anew on the plan that is in force."
    )
    return Enter(Phase.FAILED, "other_plan", text)


def is_moved_by(moving: Rollout, model: Model) -> Conflict:
    return Conflict(
        f"Rollout {moving.pk} of model '{model.name}' sets the weights now. Roll it back, or wait until it has ended, "
        "before you put another plan in force.",
        rollout=moving.pk,
    )


def list_lanes_of_steps(model: Model) -> set[str]:
    """Lanes that the steps of a running rollout name: without one of them its step would wait for ever."""
    active = Rollout.objects.filter(model=model, phase__in=ACTIVE).first()
    return {lane for step in active.steps for lane in step["lanes"]} if active is not None else set()


def refuse_scale_below(release: Release, lane: str, replicas: int) -> None:
    """Raises Conflict if a rollout would lose what its rollback, or its step, stands on (FC-10, FC-18)."""
    active = Rollout.objects.filter(model_id=release.model_id, phase__in=ACTIVE).first()
    if active is None or release.pk not in (active.stable_id, active.candidate_id):
        return
    before = Scale.objects.filter(release=release, lane=lane).values_list("replicas", flat=True).first() or 0
    is_coming = release.pk == active.candidate_id and not active.weighted_at
    least = min(before, dict(active.scales).get(lane, 0)) if is_coming else before
    if replicas >= least:
        return
    why = "its first step waits for all of them" if is_coming else "a rollback needs them at once"
    raise Conflict(
        f"Rollout {active.pk} is '{active.phase}': release {release.number} keeps its {least} replicas until it has "
        f"ended, since {why}. End the rollout first.",
        rollout=active.pk,
        replicas=least,
    )
