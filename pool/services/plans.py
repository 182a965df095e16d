"""Writes traffic plans. The highest number is in force; a rollback writes a new plan equal to an older one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from django.db import transaction
from django.db.models.functions import Coalesce

from pool.models import Model, Plan, PlanInForce, Release, Replica, Rollout
from pool.services.audit import Actor, record
from pool.services.beside_rollouts import find_moving, is_moved_by, refuse_plan_beside
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.routing import TableNumber, put_plan_into_table

MOST_PINS = 256
LONGEST_LABEL = 63
LARGEST_SHADOW = 4096


@dataclass(frozen=True)
class PlanWish:
    """Weights are {release number: percent}, whole percents that sum to 100."""

    weights: dict[int, int]
    lanes: dict[str, dict[int, int]] = field(default_factory=dict)
    pins: dict[str, int] = field(default_factory=dict)
    shadow: dict[str, object] | None = None
    comment: str = ""


def set_plan(model_name: str, wish: PlanWish, *, actor: Actor) -> Plan:
    """Puts a new plan in force. Raises Invalid with each broken rule."""
    with transaction.atomic():
        model = lock_model(model_name)
        _check(model, wish)
        refuse_plan_beside(model)
        plan, table = put_in_force(model, wish, actor=actor, rollback_of=None)
        record(
            actor,
            "plan.set",
            subject=f"model/{model.name}",
            plan=plan.number,
            weights=plan.weights,
            **({"shadow": plan.shadow} if plan.shadow else {}),
            table=table.version,
        )
    return plan


def roll_back(model_name: str, *, to_plan: int | None, actor: Actor) -> tuple[Plan, bool]:
    """One click back. Returns the plan in force and whether this call wrote it.

    Without `to_plan`: past the steps of a rollout, the newest older plan that no rollback has left; while the plan in
    force is itself a rollback, nothing changes and that plan is returned.
    """
    with transaction.atomic():
        model = lock_model(model_name)
        return roll_back_locked(model, to_plan=to_plan, actor=actor, beside=find_moving(model))


def roll_back_locked(
    model: Model,
    *,
    to_plan: int | None,
    actor: Actor,
    beside: Rollout | None,
    accept_outage: bool = False,
) -> tuple[Plan, bool]:
    """As `roll_back`, inside a transaction that holds the model's lock. `beside`: the rollout that moves its
    weights."""
    current = Plan.objects.filter(in_force__model=model).first()
    if current is None:
        raise Conflict(f"Model '{model.name}' has no plan in force, so there is nothing to take back.")
    if to_plan is None and current.rollback_of is not None:
        return current, False
    if beside is not None:
        raise is_moved_by(beside, model)
    target = _rollback_target(model, current, to_plan)
    if not accept_outage:
        _refuse_nobody(model, current, target)
    wish = wish_of(target, comment=f"Rollback from plan {current.number} to plan {target.number}")
    if wish.lanes:
        kept = set(model.lanes.values_list("name", flat=True))
        wish = replace(wish, lanes={lane: weights for lane, weights in wish.lanes.items() if lane in kept})
    plan, table = put_in_force(model, wish, actor=actor, rollback_of=target.number)
    record(
        actor,
        "plan.rollback",
        subject=f"model/{model.name}",
        plan=plan.number,
        from_plan=current.number,
        to_plan=target.number,
        table=table.version,
    )
    return plan, True


def _refuse_nobody(model: Model, current: Plan, target: Plan) -> None:
    """Raises Conflict where requests are answered now and nobody could answer them by the older plan (FC-10)."""
    ready = set(
        Replica.objects.filter(release__model=model, phase="ready", wish="run").values_list(
            "release__number", flat=True
        )
    )
    if not ready & _weighted(current) or ready & _weighted(target):
        return
    names = ", ".join(str(number) for number in sorted(_weighted(target)))
    raise Conflict(
        f"Plan {target.number} sends everything to release {names}, which has no ready replica: nobody would answer. "
        "Scale it up and roll back once it is ready; or accept the outage.",
        plan=target.number,
        accept="accept_outage",
    )


def _weighted(plan: Plan) -> set[int]:
    """Releases that get requests."""
    return {
        int(number)
        for weights in (plan.weights, *plan.lanes.values())
        for number, percent in weights.items()
        if percent > 0
    }


def _rollback_target(model: Model, current: Plan, to_plan: int | None) -> Plan:
    older = Plan.objects.filter(model=model, number__lt=current.number)
    if to_plan is not None:
        target = older.filter(number=to_plan).first()
        if target is None:
            raise Invalid(
                f"Plan {to_plan} is not an older plan of model '{model.name}'; the one in force is {current.number}.",
                to_plan=to_plan,
            )
        return target
    # A plan is left by a rollback if a later rollback went to something before it, and by a rollout if it is a step.
    left: set[int] = set()
    starts = Coalesce("rollback_of", "rollout_base")
    told = Plan.objects.filter(model=model).annotate(start=starts).filter(start__isnull=False)
    for number, start in told.values_list("number", "start"):
        left.update(range(start + 1, number))
    target = next(
        (p for p in older.order_by("-number") if p.number not in left and p.weights != current.weights), None
    )
    if target is None:
        raise Conflict(f"Model '{model.name}' has no older plan to go back to.", plan=current.number)
    return target


def lock_model(name: str) -> Model:
    model = Model.objects.select_for_update().filter(name=name).first()
    if model is None:
        raise not_found("model", name)
    return model


def _check(model: Model, wish: PlanWish) -> None:
    known = set(Release.objects.filter(model=model).values_list("number", flat=True))
    lanes = set(model.lanes.values_list("name", flat=True))
    problems = _weight_problems("weights", wish.weights, known)
    for lane, weights in wish.lanes.items():
        if lane not in lanes:
            problems.append(
                f"lanes: model '{model.name}' has no lane '{lane}' (it has {', '.join(sorted(lanes))})"
            )
        problems += _weight_problems(f"lanes.{lane}", weights, known)
    problems += [f"pins: there is no release {n}" for n in wish.pins.values() if n not in known]
    problems += _shadow_problems(wish.shadow, known)
    problems += _size_problems(wish)
    if problems:
        raise Invalid(f"The plan is refused: {'; '.join(problems)}.", problems=problems)


def _shadow_problems(shadow: dict[str, object] | None, known: set[int]) -> list[str]:
    """Gateways draw by the percent for each request, so it must be a number."""
    if shadow is None:
        return []
    problems = [f"shadow: there is nothing named {name!r}" for name in shadow.keys() - {"release", "percent"}]
    release, percent = shadow.get("release"), shadow.get("percent", 100)
    if not isinstance(release, int) or isinstance(release, bool) or release not in known:
        problems.append(f"shadow: there is no release {release!r}")
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        problems.append("shadow: the percent is a number from 0 to 100")
    return problems


def _size_problems(wish: PlanWish) -> list[str]:
    """A plan travels to every gateway with each routing table."""
    problems = []
    if len(wish.pins) > MOST_PINS or any(not 1 <= len(label) <= LONGEST_LABEL for label in wish.pins):
        problems.append(f"pins: at most {MOST_PINS}, with labels of 1 to {LONGEST_LABEL} characters")
    if wish.shadow is not None and len(json.dumps(wish.shadow)) > LARGEST_SHADOW:
        problems.append(f"shadow: at most {LARGEST_SHADOW} characters of JSON")
    return problems


def _weight_problems(where: str, weights: dict[int, int], known: set[int]) -> list[str]:
    problems = [f"{where}: there is no release {n}" for n in weights if n not in known]
    problems += [
        f"{where}: {p} % for release {n} is outside 0 to 100" for n, p in weights.items() if not 0 <= p <= 100
    ]
    total = sum(weights.values())
    if total != 100:
        problems.append(f"{where}: the weights sum to {total}, not to 100")
    return problems


def wish_of(plan: Plan, *, comment: str) -> PlanWish:
    """What puts the same traffic in force again."""
    return PlanWish(
        weights={int(k): v for k, v in plan.weights.items()},
        lanes={lane: {int(k): v for k, v in w.items()} for lane, w in plan.lanes.items()},
        pins=dict(plan.pins),
        shadow=plan.shadow,
        comment=comment,
    )


def put_in_force(
    model: Model, wish: PlanWish, *, actor: Actor, rollback_of: int | None, rollout_base: int | None = None
) -> tuple[Plan, TableNumber]:
    """Inside a transaction that holds the model's lock."""
    newest = (
        Plan.objects.filter(model=model).order_by("-number").values_list("number", flat=True).first() or 0
    )
    plan = Plan.objects.create(
        model=model,
        number=newest + 1,
        weights={str(n): p for n, p in wish.weights.items()},
        lanes={lane: {str(n): p for n, p in weights.items()} for lane, weights in wish.lanes.items()},
        pins=wish.pins,
        shadow=wish.shadow,
        rollback_of=rollback_of,
        rollout_base=rollout_base,
        comment=wish.comment,
        created_by=actor.name,
    )
    in_force = {"plan": plan, "since": plan.created_at}
    if not PlanInForce.objects.filter(model=model).update(**in_force):
        PlanInForce.objects.create(model=model, **in_force)
    return plan, put_plan_into_table(model, plan)
