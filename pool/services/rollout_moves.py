"""Moves of a rollout, each with its plan, its log line and its notices in one transaction. The only writer of a phase.

Callers hold the model's lock (`pool/services/rollouts.lock_rollout`). `update_if` is a compare-and-set on what the
decision was made on, so that a pass that was overtaken changes nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pool.domain.rollout import (
    FINAL,
    MOVES,
    Action,
    Enter,
    Phase,
    RollBack,
    Wait,
    deadline_of,
)
from pool.domain.rollout_plans import Split, largest_weight, split_of_step
from pool.models import Plan, Rollout, RolloutEvent, Scale
from pool.queries.rollback_weights import rollback_split_of
from pool.queries.rollouts import state_of
from pool.services.audit import Actor, loop_actor, record
from pool.services.notices import queue_rollout_notices
from pool.services.plans import PlanWish, put_in_force, wish_of
from pool.services.rollout_room import give_room_back, has_swapped

LOOP = loop_actor("rollouts")


def apply(rollout: Rollout, action: Action, *, now: datetime) -> bool:
    """Inside a transaction that holds the model's lock. False: it only waits, or something was first."""
    if isinstance(action, Wait):
        if action.next_action != rollout.next_action:
            Rollout.objects.filter(pk=rollout.pk).update(next_action=action.next_action)
        return False
    if isinstance(action, RollBack):
        return take_back(rollout, action.code, action.text, actor=LOOP, now=now)
    return _enter(rollout, action, now=now)


def take_back(rollout: Rollout, code: str, text: str, *, actor: Actor, now: datetime) -> bool:
    """Before the first weight: the abort, without a plan. Else the plan from before, as far as stable carries it."""
    if rollout.weighted_at is None:
        done = _enter(rollout, Enter(Phase.ROLLED_BACK, code, text), now=now, actor=actor)
        if done:
            record(
                actor, "rollout.abort", subject=f"model/{rollout.model.name}", rollout=rollout.pk, code=code
            )
        return done
    # After a swap the candidate holds the room that stable needs: it leaves, and stable gets all of its weight back.
    swapped = has_swapped(rollout)
    split = rollback_split_of(rollout, is_whole=swapped)
    percent = 100 - largest_weight(split, rollout.candidate.number)
    first = rollout.phase != Phase.ROLLING_BACK
    values: dict[str, Any] = {"reason_code": code, "reason_text": text, "streams": rollout.streams}
    if first:
        values |= {
            "entered_at": now, "deadline_at": deadline_of(Phase.ROLLING_BACK, rollout.hold_s, now),
            "next_action": "gateways apply the plan",
        }  # fmt: skip
    wish = _rollback_wish(rollout, split)
    # Before the plan: the table that it makes reads from this row how running streams are to end.
    if not update_if(rollout, phase=Phase.ROLLING_BACK, streams=rollout.streams):
        raise RuntimeError(f"rollout {rollout.pk} moved under its model's lock")
    plan_values, said = _put(rollout, wish, actor=actor, rollback_of=rollout.base_plan)
    values |= plan_values | {"rollback_plan": plan_values["plan"], "resumes": ""}
    if not update_if(rollout, phase=Phase.ROLLING_BACK, **values):
        raise RuntimeError(f"rollout {rollout.pk} moved under its model's lock")
    partly = "" if percent >= 100 else f" Stable carries {percent} % of its weight so far; the rest follows."
    if swapped:
        _put_scales_back(rollout)
        partly = " The candidate stops, and stable loads again on the room that it gave up."
    note(
        rollout,
        "guard" if actor is LOOP else "operator",
        code,
        f"{text} {said}{partly}",
        actor=actor.name,
        now=now,
    )
    if first:
        record(
            actor, "rollout.rollback", subject=f"model/{rollout.model.name}", rollout=rollout.pk, code=code,
            plan=plan_values["plan"],
        )  # fmt: skip
        queue_rollout_notices(rollout, now=now)
    return True


def update_if(rollout: Rollout, **values: Any) -> bool:
    """Compare-and-set on (id, phase, step); the object follows."""
    phase = values.get("phase", rollout.phase)
    if phase != rollout.phase and Phase(phase) not in MOVES[Phase(rollout.phase)]:
        raise ValueError(f"a rollout does not go from {rollout.phase} to {phase}")
    done = Rollout.objects.filter(pk=rollout.pk, phase=rollout.phase, step=rollout.step).update(**values)
    if done:
        for name, value in values.items():
            setattr(rollout, name, value)
    return bool(done)


def note(
    rollout: Rollout, kind: str, code: str, text: str, *, now: datetime, actor: str = "", **facts: object
) -> None:
    RolloutEvent.objects.create(
        rollout=rollout, at=now, kind=kind, code=code, text=text.strip(), facts=facts, actor=actor
    )


def ask_replicas(rollout: Rollout) -> None:
    """The candidate's wish; the replicas' loop makes it true. Never lowers one."""
    for lane, replicas in rollout.scales:
        Scale.objects.filter(release_id=rollout.candidate_id, lane=lane, replicas__lt=replicas).update(
            replicas=replicas
        )


def _enter(rollout: Rollout, action: Enter, *, now: datetime, actor: Actor = LOOP) -> bool:
    values: dict[str, Any] = {
        "phase": action.phase, "reason_code": action.code, "reason_text": action.text, "entered_at": now,
        "deadline_at": deadline_of(action.phase, rollout.hold_s, now), "resumes": "", "next_action": "",
    }  # fmt: skip
    if rollout.phase == Phase.ROLLING_BACK and action.phase is Phase.ROLLED_BACK:
        # Why it was taken back is what people look for afterwards; that it is complete stands in its log.
        del values["reason_code"], values["reason_text"]
    said = ""
    if action.step is not None:
        plan_values, said = _put(rollout, _step_wish(rollout, action.step), actor=actor, rollback_of=None)
        values |= plan_values | {"weighted_at": rollout.weighted_at or now}
        values["step"] = action.step
    if action.phase in FINAL:
        values["ended_at"] = now
    if not update_if(rollout, **values):
        if said:
            raise RuntimeError(f"rollout {rollout.pk} moved under its model's lock")
        return False
    if action.phase is Phase.ROLLED_BACK or (action.phase is Phase.FAILED and rollout.weighted_at is None):
        # A rollback that could not be proven keeps the engines: somebody may still send there.
        _put_scales_back(rollout)
    if actor is LOOP:
        record(
            actor, f"rollout.{action.phase}", subject=f"model/{rollout.model.name}", rollout=rollout.pk,
            code=action.code, step=rollout.step, plan=rollout.plan,
        )  # fmt: skip
    note(rollout, "phase", action.code, f"{action.phase}: {action.text} {said}", actor=actor.name, now=now)
    queue_rollout_notices(rollout, now=now)
    return True


def _put(
    rollout: Rollout, wish: PlanWish, *, actor: Actor, rollback_of: int | None
) -> tuple[dict[str, Any], str]:
    base = rollout.base_plan if rollback_of is None else None
    plan, table = put_in_force(rollout.model, wish, actor=actor, rollback_of=rollback_of, rollout_base=base)
    values = {"plan": plan.number, "table_epoch": table.epoch, "table_version": table.version}
    return values, f"Plan {plan.number} is in force."


def _step_wish(rollout: Rollout, number: int) -> PlanWish:
    base = _base_wish(rollout, "")
    lanes = list(rollout.model.lanes.values_list("name", flat=True))
    split = split_of_step(
        Split(base.weights, base.lanes), rollout.candidate.number, state_of(rollout).steps, number, lanes
    )
    what = "full weight" if number >= len(rollout.steps) else f"step {number + 1}"
    comment = f"Rollout {rollout.pk}, {what}: release {rollout.candidate.number}"
    return PlanWish(split.weights, split.lanes, base.pins, base.shadow, comment)


def _rollback_wish(rollout: Rollout, split: Split) -> PlanWish:
    comment = f"Rollback of rollout {rollout.pk} to plan {rollout.base_plan}"
    base = _base_wish(rollout, comment)
    return PlanWish(split.weights, split.lanes, base.pins, base.shadow, comment)


def _base_wish(rollout: Rollout, comment: str) -> PlanWish:
    return wish_of(Plan.objects.get(model=rollout.model, number=rollout.base_plan), comment=comment)


def _put_scales_back(rollout: Rollout) -> None:
    give_room_back(rollout)
    for lane, replicas in rollout.scales_before:
        Scale.objects.filter(release_id=rollout.candidate_id, lane=lane).update(replicas=replicas)
