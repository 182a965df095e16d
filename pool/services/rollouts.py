"""What an operator does with a rollout: start, pause, resume, promote, take back, fence. Each is safe to repeat.

All of them hold the model's lock, so that two operators, a loop and a script see one order of things. The loop's side
is `pool/services/rollout_moves.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from pool.domain.gates import read_gates
from pool.domain.replica import Phase as ReplicaPhase
from pool.domain.rollout import ACTIVE, Phase, Step, deadline_of
from pool.models import Model, Plan, Release, Replica, Rollout, Scale
from pool.services import replicas
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.notices import queue_rollout_notices
from pool.services.plans import lock_model
from pool.services.rollout_moves import note, take_back, update_if
from pool.services.rollout_room import Reports, load_reports, plan_swap, refuse_without_room
from pool.services.scales import make_id

MOST_STEPS = 20
LONGEST_SOAK_S = 7 * 86400
LONGEST_HOLD_S = 7 * 86400
MOST_REQUESTS = 10_000_000
DEFAULT_STEPS = (Step(5), Step(25), Step(50), Step(100))


@dataclass(frozen=True)
class RolloutWish:
    """`lanes`: one after the other, each with all steps; empty: all at once. `replicas` None: as stable has them.
    `accept_outage`: stable may stop first, where nothing else makes room."""

    candidate: int
    steps: tuple[Step, ...] = DEFAULT_STEPS
    gates: Mapping[str, Any] = field(default_factory=dict)
    hold_s: int = 1800
    lanes: tuple[str, ...] = ()
    replicas: int | None = None
    accept_outage: bool = False
    comment: str = ""


@dataclass(frozen=True)
class Start:
    """What a start would do: found by `plan_start`, written by `start_rollout`."""

    model: Model
    candidate: Release
    stable: Release
    base: Plan
    steps: tuple[Step, ...]
    scales: tuple[tuple[str, int], ...]
    scales_before: tuple[tuple[str, int], ...]


def plan_start(model: Model, wish: RolloutWish) -> Start:
    """Raises Conflict while one runs or nothing is in force, NotFound without the release, Invalid with each broken
    rule."""
    active = find_active(model)
    if active is not None:
        raise _already(model, active)
    base = Plan.objects.filter(in_force__model=model).first()
    if base is None:
        raise Conflict(
            f"Model '{model.name}' has no traffic plan in force, so there is no stable release to compare with. "
            "Put a plan in force first.",
            model=model.name,
        )
    candidate = Release.objects.filter(model=model, number=wish.candidate).first()
    if candidate is None:
        raise not_found("release", f"{model.name}/{wish.candidate}")
    weights = {int(number): percent for number, percent in base.weights.items()}
    problems = _step_problems(wish.steps) + _lane_problems(model, wish) + _wish_problems(wish, weights)
    if problems:
        raise Invalid(f"The rollout is refused: {'; '.join(problems)}.", problems=problems)
    stable = Release.objects.get(
        model=model, number=max(weights, key=lambda number: (weights[number], -number))
    )
    before = tuple(Scale.objects.filter(release=candidate).values_list("lane", "replicas"))
    scales = _scales(stable, before, wish.replicas)
    return Start(model, candidate, stable, base, _spread_over_lanes(wish), scales, before)


def preview_rollout(model_name: str, wish: RolloutWish) -> Start:
    """What `start_rollout` would do, or why it would refuse, room apart. Writes nothing."""
    with transaction.atomic():
        return plan_start(lock_model(model_name), wish)


def preview_reports(start: Start, wish: RolloutWish, *, now: datetime) -> Reports:
    """What the candidate changes and where it would go; `refusal` says whether a start would be refused for it."""
    return load_reports(
        start.candidate,
        start.stable,
        start.scales,
        steps=start.steps,
        accept_outage=wish.accept_outage,
        now=now,
    )


def start_rollout(model_name: str, wish: RolloutWish, *, actor: Actor, now: datetime) -> Rollout:
    """Raises what `plan_start` raises, and Conflict where there is no room or only at the price of an outage that the
    wish does not accept (FC-16)."""
    with transaction.atomic():
        model = lock_model(model_name)
        start = plan_start(model, wish)
        reports = preview_reports(start, wish, now=now)
        refuse_without_room(reports)
        try:
            with transaction.atomic():
                rollout = _create(start, reports, wish, actor=actor, now=now)
        except IntegrityError:
            active = Rollout.objects.filter(model=model, phase__in=ACTIVE).first()
            if active is None:
                raise
            raise _already(model, active) from None
        text = f"Release {wish.candidate} beside release {start.stable.number}, by {actor.name}."
        for warning in reports.warnings:
            note(rollout, "warning", warning.code, warning.text, now=now)
        note(rollout, "phase", "planned", f"{text} {wish.comment}".strip(), actor=actor.name, now=now)
        record(
            actor, "rollout.start", subject=f"model/{model.name}", rollout=rollout.pk,
            candidate=wish.candidate, stable=start.stable.number, fit=str(reports.fit.outcome),
            accept_outage=wish.accept_outage,
        )  # fmt: skip
        queue_rollout_notices(rollout, now=now)
    return rollout


def pause(rollout_id: str, *, actor: Actor, now: datetime) -> tuple[Rollout, bool]:
    """Weights stay and the guard watches on."""
    with transaction.atomic():
        rollout = lock_rollout(rollout_id)
        phase = Phase(rollout.phase)
        if phase is Phase.PAUSED:
            return rollout, False
        if phase is Phase.ROLLING_BACK:
            raise Conflict("A rollback is not paused: it gives stable its traffic back.", phase=phase)
        _must_be_active(rollout)
        update_if(
            rollout, phase=Phase.PAUSED, resumes=phase, entered_at=now, deadline_at=None,
            reason_code="paused", reason_text=f"Paused by {actor.name}.", next_action="an operator resumes it",
        )  # fmt: skip
        _log(rollout, "pause", f"Paused in '{phase}'; the weights stay.", actor=actor, now=now)
        queue_rollout_notices(rollout, now=now)
    return rollout, True


def resume(rollout_id: str, *, actor: Actor, now: datetime) -> tuple[Rollout, bool]:
    """The phase that was left begins anew: its soak time and its requests count from now."""
    with transaction.atomic():
        rollout = lock_rollout(rollout_id)
        if rollout.phase != Phase.PAUSED:
            _must_be_active(rollout)
            return rollout, False
        phase = Phase(rollout.resumes)
        update_if(
            rollout, phase=phase, resumes="", entered_at=now, deadline_at=deadline_of(phase, rollout.hold_s, now),
            reason_code="resumed", reason_text=f"Resumed by {actor.name}.", next_action="",
        )  # fmt: skip
        _log(rollout, "resume", f"Goes on in '{phase}'; its clock begins anew.", actor=actor, now=now)
        queue_rollout_notices(rollout, now=now)
    return rollout, True


def promote(rollout_id: str, *, actor: Actor, now: datetime) -> tuple[Rollout, bool]:
    """Go to `holding` now: the loop gives the candidate all traffic as soon as its replicas carry it."""
    with transaction.atomic():
        rollout = lock_rollout(rollout_id)
        phase = Phase(rollout.phase)
        if phase in (Phase.HOLDING, Phase.PROMOTED) or rollout.promote_asked:
            return rollout, False
        if phase is not Phase.STEPPING:
            raise Conflict(
                f"Rollout {rollout.pk} is '{phase}': it is promoted from a step with weight. "
                + ("Resume it first." if phase is Phase.PAUSED else "Wait until the candidate is warm."),
                phase=phase,
            )
        update_if(rollout, promote_asked=True)
        _log(rollout, "promote", "Goes to full weight without waiting for its gates.", actor=actor, now=now)
    return rollout, True


def roll_back(
    rollout_id: str, *, actor: Actor, now: datetime, streams: Mapping[str, Any] | None = None
) -> tuple[Rollout, bool]:
    """One click back. Before the first weight: the abort. A repeated one changes nothing."""
    ending = _read_streams(streams)
    with transaction.atomic():
        rollout = lock_rollout(rollout_id)
        phase = Phase(rollout.phase)
        if phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK):
            return rollout, False
        if phase not in ACTIVE:
            raise Conflict(
                f"Rollout {rollout.pk} has ended ('{phase}'). Roll the model's traffic plan back instead.",
                phase=phase,
            )
        rollout.streams = ending
        take_back(rollout, "operator", f"Taken back by {actor.name}.", actor=actor, now=now)
    return rollout, True


def fence(rollout_id: str, *, actor: Actor, now: datetime) -> tuple[Rollout, bool]:
    """Stops the candidate's engines at once: what a gateway that says nothing may still send there ends. Streams there
    break off."""
    with transaction.atomic():
        rollout = lock_rollout(rollout_id)
        if rollout.phase != Phase.ROLLING_BACK:
            raise Conflict(
                f"Rollout {rollout.pk} is '{rollout.phase}': engines are fenced while a rollback runs.",
                phase=rollout.phase,
            )
        Scale.objects.filter(release_id=rollout.candidate_id).update(replicas=0)
        rows = list(Replica.objects.filter(release_id=rollout.candidate_id, wish="run"))
        Replica.objects.filter(pk__in=[row.pk for row in rows]).update(wish="stop")
        for row in rows:
            _stop_now(row, now)
        if rows:
            _log(rollout, "fence", f"{len(rows)} engines of the candidate are stopped.", actor=actor, now=now)
    return rollout, bool(rows)


def _stop_now(row: Replica, now: datetime) -> None:
    at = replicas.seen(row)
    if at.phase == ReplicaPhase.READY and replicas.begin_drain(at, reason="fenced", deadline_at=now, now=now):
        at = replace(at, phase=ReplicaPhase.DRAINING)
    if row.node_id is not None:
        replicas.send_stop(at, force=True, reason="fenced", now=now)


def lock_rollout(rollout_id: str) -> Rollout:
    """The model's lock first, then the row: the order of everybody."""
    name = Rollout.objects.filter(pk=rollout_id).values_list("model__name", flat=True).first()
    if name is None:
        raise not_found("rollout", rollout_id)
    lock_model(name)
    return (
        Rollout.objects.select_for_update(of=("self",))
        .select_related("model", "candidate", "stable")
        .get(pk=rollout_id)
    )


def find_active(model: Model) -> Rollout | None:
    return (
        Rollout.objects.select_related("model", "candidate", "stable")
        .filter(model=model, phase__in=ACTIVE)
        .first()
    )


def _already(model: Model, active: Rollout) -> Conflict:
    return Conflict(
        f"Model '{model.name}' has an active rollout already: {active.pk}, '{active.phase}'. One at a time.",
        rollout=active.pk,
    )


def _must_be_active(rollout: Rollout) -> None:
    if rollout.phase not in ACTIVE:
        raise Conflict(f"Rollout {rollout.pk} has ended ('{rollout.phase}').", phase=rollout.phase)


def _log(rollout: Rollout, action: str, text: str, *, actor: Actor, now: datetime) -> None:
    note(rollout, "operator", action, text, actor=actor.name, now=now)
    record(actor, f"rollout.{action}", subject=f"model/{rollout.model.name}", rollout=rollout.pk)


def _create(start: Start, reports: Reports, wish: RolloutWish, *, actor: Actor, now: datetime) -> Rollout:
    return Rollout.objects.create(
        id="o" + make_id()[1:],
        model=start.model,
        candidate=start.candidate,
        stable=start.stable,
        base_plan=start.base.number,
        steps=[asdict(step) for step in reports.steps],
        accept_outage=wish.accept_outage,
        fit=reports.fit.as_json(),
        swap=plan_swap(start.stable, reports.fit),
        gates=dict(wish.gates),
        hold_s=wish.hold_s,
        scales=[list(scale) for scale in start.scales],
        scales_before=[list(scale) for scale in start.scales_before],
        entered_at=now,
        deadline_at=deadline_of(Phase.PLANNED, wish.hold_s, now),
        next_action="the candidate's replicas are asked for",
        created_by=actor.name,
        created_at=now,
    )


def _scales(
    stable: Release, before: tuple[tuple[str, int], ...], wished: int | None
) -> tuple[tuple[str, int], ...]:
    """For each lane with a profile of the candidate: as many as asked, else as stable has; never fewer than now."""
    of_stable = dict(Scale.objects.filter(release=stable).values_list("lane", "replicas"))
    usual = max([1, *of_stable.values()])
    return tuple(
        (lane, max(now, wished if wished is not None else of_stable.get(lane, usual) or 1))
        for lane, now in before
    )


def _spread_over_lanes(wish: RolloutWish) -> tuple[Step, ...]:
    if not wish.lanes:
        return wish.steps
    return tuple(
        Step(step.weight, step.soak_s, step.min_requests, (lane,))
        for lane in wish.lanes
        for step in wish.steps
    )


def _wish_problems(wish: RolloutWish, weights: Mapping[int, int]) -> list[str]:
    problems = []
    if weights.get(wish.candidate):
        problems.append(f"candidate: release {wish.candidate} has {weights[wish.candidate]} % already")
    if not 0 <= wish.hold_s <= LONGEST_HOLD_S:
        problems.append(f"hold_s: {wish.hold_s} is outside 0 to {LONGEST_HOLD_S}")
    if wish.replicas is not None and not 1 <= wish.replicas <= 512:
        problems.append(f"replicas: {wish.replicas} is outside 1 to 512")
    try:
        read_gates(dict(wish.gates))
    except ValueError as exc:
        problems.append(str(exc))
    return problems


def _step_problems(steps: tuple[Step, ...]) -> list[str]:
    if not 1 <= len(steps) <= MOST_STEPS:
        return [f"steps: 1 to {MOST_STEPS} of them, not {len(steps)}"]
    problems = []
    for number, step in enumerate(steps, 1):
        if not 1 <= step.weight <= 100:
            problems.append(f"steps: the weight {step.weight} % of step {number} is outside 1 to 100")
        if not 0 <= step.soak_s <= LONGEST_SOAK_S:
            problems.append(f"steps: soak_s {step.soak_s} of step {number} is outside 0 to {LONGEST_SOAK_S}")
        if not 0 <= step.min_requests <= MOST_REQUESTS:
            problems.append(f"steps: min_requests of step {number} is outside 0 to {MOST_REQUESTS}")
    weights = [step.weight for step in steps]
    if weights != sorted(set(weights)):
        problems.append("steps: each weight is larger than the one before")
    return problems


def _lane_problems(model: Model, wish: RolloutWish) -> list[str]:
    known = list(model.lanes.values_list("name", flat=True))
    named = [*wish.lanes, *(lane for step in wish.steps for lane in step.lanes)]
    problems = [f"lanes: model '{model.name}' has no lane '{lane}'" for lane in named if lane not in known]
    if len(set(wish.lanes)) != len(wish.lanes):
        problems.append("lanes: each of them once")
    return problems


def _read_streams(streams: Mapping[str, Any] | None) -> dict[str, Any]:
    """`{}`: running streams finish. `{"end_after_tokens": n}`: they end after n more tokens, 0 to 100,000."""
    if not streams:
        return {}
    tokens = streams.get("end_after_tokens")
    if set(streams) != {"end_after_tokens"} or isinstance(tokens, bool) or not isinstance(tokens, int):
        raise Invalid('streams: nothing, to let them finish, or {"end_after_tokens": n}.')
    if not 0 <= tokens <= 100_000:
        raise Invalid("streams: end_after_tokens is outside 0 to 100000.", end_after_tokens=tokens)
    return {"end_after_tokens": tokens}
