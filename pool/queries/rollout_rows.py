"""Rollouts as pages and scripts read them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pool.domain.rollout import OWNERS, Phase, has_weight
from pool.models import PlanInForce, Rollout
from pool.queries.rollouts import Proof, find_rollout, list_rollouts, load_proof, state_of

MOST_EVENTS = 200
MOST_READINGS = 2000
READINGS_FOR = timedelta(hours=6)


@dataclass(frozen=True)
class StepRow:
    """`state`: done, current or coming."""

    number: int
    weight: int
    soak_s: int
    min_requests: int
    lanes: tuple[str, ...]
    state: str


@dataclass(frozen=True)
class RolloutRow:
    id: str
    model: str
    candidate: int
    stable: int
    phase: str
    resumes: str
    """While paused: the phase that goes on."""
    owner: str
    """Who makes the next move: control, nodes, gateways, operator; empty when it has ended."""
    next_action: str
    reason_code: str
    reason_text: str
    step: int
    """Index into `steps`; -1 before the first weight, their number while holding."""
    steps: tuple[StepRow, ...]
    candidate_percent: int
    """The candidate's general weight in the plan in force."""
    weights: dict[str, int]
    """General weights of the plan in force."""
    plan_in_force: int | None
    """Its number: another one than `plan` where something else has moved the traffic since."""
    hold_s: int
    base_plan: int
    plan: int | None
    rollback_plan: int | None
    promote_asked: bool
    end_after_tokens: int | None
    """At a rollback: streams of the candidate end after so many more tokens; None: they finish."""
    entered_at: datetime
    deadline_at: datetime | None
    created_by: str
    created_at: datetime
    weighted_at: datetime | None
    ended_at: datetime | None
    is_active: bool
    has_weight: bool


@dataclass(frozen=True)
class NewestRollout:
    id: str
    phase: str


@dataclass(frozen=True)
class RolloutEventRow:
    at: datetime
    kind: str
    code: str
    text: str
    actor: str


@dataclass(frozen=True)
class GateReadingRow:
    gate: str
    at: datetime
    outcome: str
    worse_log: float
    """Natural log of the evidence that the candidate is worse."""
    not_worse_log: float


@dataclass(frozen=True)
class RolloutView:
    rollout: RolloutRow
    gates: dict[str, Any]
    """As the start asked for them; what is missing has its default."""
    accept_outage: bool
    fit: dict[str, Any]
    """The fit report of its start (`FitReport.as_json`); empty: it began before there was one."""
    swap: dict[str, Any]
    """What stable gives up for room: `{replicas, scales: [[lane, before, during]], is_full, made}`; empty: nothing."""
    verdict: dict[str, Any]
    """The newest reading of every gate; empty before the first."""
    verdict_at: datetime | None
    proof: Proof | None
    """Since a rollback began."""
    events: tuple[RolloutEventRow, ...]
    """Newest first, at most 200."""


def find_newest_rollouts(model: str) -> dict[int, NewestRollout]:
    """Of each release that was ever a candidate, by its number. 1 query."""
    rows = (
        Rollout.objects.filter(model__name=model)
        .order_by("candidate__number", "-created_at", "-id")
        .distinct("candidate__number")
        .values_list("candidate__number", "id", "phase")
    )
    return {number: NewestRollout(rollout_id, phase) for number, rollout_id, phase in rows}


def list_rollout_rows(model: str | None, *, limit: int = 100, offset: int = 0) -> tuple[RolloutRow, ...]:
    """Newest first."""
    return tuple(rollout_row(rollout) for rollout in list_rollouts(model, limit=limit, offset=offset))


def find_rollout_view(rollout_id: str, *, now: datetime) -> RolloutView | None:
    rollout = find_rollout(rollout_id)
    if rollout is None:
        return None
    events = rollout.events.order_by("-id")[:MOST_EVENTS]
    return RolloutView(
        rollout=rollout_row(rollout),
        gates=rollout.gates,
        accept_outage=rollout.accept_outage,
        fit=rollout.fit,
        swap=rollout.swap,
        verdict=rollout.verdict,
        verdict_at=rollout.verdict_at,
        proof=load_proof(rollout, now) if rollout.rollback_plan is not None else None,
        events=tuple(RolloutEventRow(row.at, row.kind, row.code, row.text, row.actor) for row in events),
    )


def list_readings(rollout_id: str, *, since: datetime) -> tuple[GateReadingRow, ...]:
    """Oldest first, the newest 2,000."""
    rollout = find_rollout(rollout_id)
    if rollout is None:
        return ()
    rows = rollout.readings.filter(at__gte=since).order_by("-id")[:MOST_READINGS]
    return tuple(
        GateReadingRow(row.gate, row.at, row.outcome, row.worse_log, row.not_worse_log)
        for row in reversed(rows)
    )


def rollout_row(rollout: Rollout) -> RolloutRow:
    state = state_of(rollout)
    in_force: PlanInForce | None = getattr(rollout.model, "in_force", None)
    weights = in_force.plan.weights if in_force is not None else {}
    return RolloutRow(
        id=rollout.pk,
        model=rollout.model.name,
        candidate=rollout.candidate.number,
        stable=rollout.stable.number,
        phase=rollout.phase,
        resumes=rollout.resumes,
        owner=OWNERS[Phase(rollout.phase)],
        next_action=rollout.next_action,
        reason_code=rollout.reason_code,
        reason_text=rollout.reason_text,
        step=rollout.step,
        steps=tuple(
            StepRow(
                number, step.weight, step.soak_s, step.min_requests, step.lanes, _step_state(rollout, number)
            )
            for number, step in enumerate(state.steps, 1)
        ),
        candidate_percent=int(weights.get(str(rollout.candidate.number), 0)),
        weights=weights,
        plan_in_force=in_force.plan.number if in_force is not None else None,
        hold_s=rollout.hold_s,
        base_plan=rollout.base_plan,
        plan=rollout.plan,
        rollback_plan=rollout.rollback_plan,
        promote_asked=rollout.promote_asked,
        end_after_tokens=rollout.streams.get("end_after_tokens"),
        entered_at=rollout.entered_at,
        deadline_at=rollout.deadline_at,
        created_by=rollout.created_by,
        created_at=rollout.created_at,
        weighted_at=rollout.weighted_at,
        ended_at=rollout.ended_at,
        is_active=rollout.ended_at is None,
        has_weight=has_weight(state),
    )


def _step_state(rollout: Rollout, number: int) -> str:
    if number - 1 < rollout.step:
        return "done"
    return "current" if number - 1 == rollout.step else "coming"
