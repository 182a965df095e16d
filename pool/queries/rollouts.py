"""Rollouts as pages and loops see them: rows, the facts that a decision is made on, and the proof of a rollback."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import QuerySet

from pool.domain.backoff import FailureKind
from pool.domain.replica import Phase as ReplicaPhase
from pool.domain.rollout import ACTIVE, Facts, Judgement, Phase, State, Step, coming_step
from pool.domain.rollout_plans import split_of_step
from pool.models import GatewayInstance, Lane, Plan, Replica, Rollout
from pool.queries.acknowledgements import count_in_flight, is_acknowledged, list_live_gateways
from pool.queries.capacity import find_lack
from pool.queries.cells import CellFilter, find_series, sum_counts
from pool.queries.golden import read_golden
from pool.queries.rollback_weights import (
    given_back_percent_of,
    has_stable_grown,
    split_of,
    stable_percents_of,
)

VERDICT_STALE = timedelta(seconds=30)
_LOADED = (ReplicaPhase.WARMING, ReplicaPhase.READY)
_RESOLUTION_S = 10
_NOTHING_TO_COMPARE = "stable does not run, so there is nothing to compare with: promote it, or take it back"


@dataclass(frozen=True)
class GatewayProof:
    """What one gateway says of a rollback. `applied_at` None: it has not said that it serves the plan. `last_sent_at`:
    when it last sent a request to the candidate; None: never, or it has not said. `in_flight`: None while silent."""

    id: str
    applied_at: datetime | None
    silent: bool
    last_sent_at: datetime | None
    in_flight: int | None


@dataclass(frozen=True)
class Proof:
    """`complete`: every gateway that lives serves the plan, stable has all of its weight and nothing runs at the
    candidate."""

    plan: int | None
    stable_percent: int
    gateways: tuple[GatewayProof, ...]
    last_sent_at: datetime | None
    running: int | None
    complete: bool


def find_rollout(rollout_id: str) -> Rollout | None:
    return _with_names().filter(pk=rollout_id).first()


def list_rollouts(model: str | None = None, *, limit: int = 100, offset: int = 0) -> list[Rollout]:
    """Newest first."""
    rows = _with_names()
    if model is not None:
        rows = rows.filter(model__name=model)
    return list(rows[offset : offset + limit])


def list_active() -> list[Rollout]:
    return list(_with_names().filter(phase__in=ACTIVE))


def state_of(rollout: Rollout) -> State:
    return State(
        phase=Phase(rollout.phase),
        step=rollout.step,
        entered_at=rollout.entered_at,
        steps=tuple(
            Step(step["weight"], step["soak_s"], step["min_requests"], tuple(step["lanes"]))
            for step in rollout.steps
        ),
        hold_s=rollout.hold_s,
        resumes=Phase(rollout.resumes) if rollout.resumes else None,
        weighted=rollout.weighted_at is not None,
        promote_asked=rollout.promote_asked,
    )


def load_facts(rollout: Rollout, now: datetime) -> Facts:
    """What holds now, from the database alone: it can be read without Redis."""
    replicas = list(Replica.objects.filter(release_id=rollout.candidate_id, wish="run"))
    wished = sum(replicas for _, replicas in rollout.scales)
    judgement, text, broken = _read_verdict(rollout, now)
    if rollout.swap.get("is_full") and judgement is Judgement.NOT_YET:
        text = _NOTHING_TO_COMPARE
    golden, golden_text = read_golden(rollout)
    requests, in_use = _count_requests(rollout, now)
    proof = load_proof(rollout, now)
    silent = tuple(gateway.id for gateway in proof.gateways if gateway.silent)
    return Facts(
        now=now,
        replicas_exist=len(replicas) >= wished,
        loaded=_count(replicas, _LOADED) >= wished,
        ready=_count(replicas, (ReplicaPhase.READY,)) >= wished,
        failed=_find_failure(replicas),
        golden=golden,
        golden_text=golden_text,
        judgement=judgement,
        judgement_text=text,
        broken_limit=broken,
        lacks_capacity=_find_lack(rollout, now),
        requests=requests,
        lanes_in_use=in_use,
        in_force=rollout.plan is None or _is_in_force(rollout),
        acknowledged=bool(proof.gateways) and all(gateway.applied_at for gateway in proof.gateways),
        silent=silent,
        drained=proof.running == 0,
        stable_percent=proof.stable_percent,
        given_back_percent=given_back_percent_of(rollout),
        stable_grew=rollout.rollback_plan is not None and has_stable_grown(rollout),
        gave_room=bool(rollout.swap.get("made")),
        places=_find_waiting(replicas),
    )


def load_proof(rollout: Rollout, now: datetime) -> Proof:
    """Of the plan that the rollout wrote last. 3 queries."""
    order = (rollout.table_epoch or 0, rollout.table_version or 0)
    candidates = set(Replica.objects.filter(release_id=rollout.candidate_id).values_list("id", flat=True))
    live = list_live_gateways(now)
    rows = {row.pk: row for row in GatewayInstance.objects.filter(gone_at=None)}
    gateways = tuple(
        GatewayProof(
            id=view.id,
            applied_at=rows[view.id].applied_at if view.id in rows and view.order >= order else None,
            silent=view.silent,
            last_sent_at=_last_sent(rows.get(view.id), candidates),
            in_flight=None if view.silent else sum(view.in_flight.get(one, 0) for one in candidates),
        )
        for view in live
    )
    counts = [count_in_flight(live, one) for one in candidates]
    running = None if None in counts else sum(count or 0 for count in counts)
    sent = [gateway.last_sent_at for gateway in gateways if gateway.last_sent_at is not None]
    given_back = given_back_percent_of(rollout)
    return Proof(
        plan=rollout.plan,
        stable_percent=min(stable_percents_of(rollout).values()),
        gateways=gateways,
        last_sent_at=max(sent, default=None),
        running=running,
        complete=bool(live) and is_acknowledged(live, order) and running == 0 and given_back == 100,
    )


def _with_names() -> QuerySet[Rollout]:
    return Rollout.objects.select_related("model__in_force__plan", "candidate", "stable")


def _count(replicas: list[Replica], phases: tuple[ReplicaPhase, ...]) -> int:
    return sum(replica.phase in phases for replica in replicas)


def _find_failure(replicas: list[Replica]) -> str:
    """A replica that will not be tried again by itself."""
    for replica in replicas:
        given_up = replica.failure_kind == FailureKind.PERMANENT or replica.next_retry_at is None
        if replica.phase == ReplicaPhase.FAILED and given_up:
            return f"Replica {replica.pk} cannot start: {replica.reason_text}"
    return ""


def _find_waiting(replicas: list[Replica]) -> str:
    """The first replica without a place, and why."""
    for replica in replicas:
        if replica.phase == ReplicaPhase.PENDING and replica.reason_text:
            return f"replica {replica.pk} waits for a place: {replica.reason_text}"
    return ""


def _read_verdict(rollout: Rollout, now: datetime) -> tuple[Judgement, str, str]:
    """An old verdict is none (FC-11)."""
    if rollout.verdict_at is None:
        return Judgement.NOT_YET, "", ""
    verdict = rollout.verdict
    # What was found worse, or beyond a limit (which gateways' beats tell without Redis), stays so.
    is_bad = verdict.get("judgement") == Judgement.WORSE
    if rollout.verdict_at < now - VERDICT_STALE and not is_bad:
        text = "the gates have read no requests for over 30 s"
        return Judgement.NOT_YET, text, str(verdict.get("broken_limit", ""))
    return (
        Judgement(verdict.get("judgement", Judgement.NOT_YET)),
        str(verdict.get("text", "")),
        str(verdict.get("broken_limit", "")),
    )


def _count_requests(rollout: Rollout, now: datetime) -> tuple[dict[str, int], frozenset[str]]:
    """Since the phase began: the candidate's by lane, and the lanes that any release had requests in."""
    if rollout.weighted_at is None:
        return {}, frozenset()
    series = find_series(CellFilter(model=rollout.model.name))
    start = datetime.fromtimestamp(rollout.entered_at.timestamp() // _RESOLUTION_S * _RESOLUTION_S, tz=UTC)
    counted = sum_counts(series, ("requests",), start=start, end=now, resolution_s=_RESOLUTION_S)
    requests: dict[str, int] = {}
    in_use = set()
    for number, sums in counted.items():
        key = series[number]
        if sums["requests"]:
            in_use.add(key.lane)
        if key.release == rollout.candidate.number:
            requests[key.lane] = requests.get(key.lane, 0) + sums["requests"]
    return requests, frozenset(in_use)


def _find_lack(rollout: Rollout, now: datetime) -> str:
    """Looked at only where a step could begin now. Where nothing of stable is left, waiting only lengthens the
    outage."""
    if rollout.swap.get("is_full"):
        return ""
    state = state_of(rollout)
    number = coming_step(state, now)
    if number is None:
        return ""
    base = Plan.objects.get(model_id=rollout.model_id, number=rollout.base_plan)
    lanes = list(Lane.objects.filter(model_id=rollout.model_id).values_list("name", flat=True))
    split = split_of_step(split_of(base), rollout.candidate.number, state.steps, number, lanes)
    weights = {lane: split.lanes.get(lane, split.weights).get(rollout.candidate.number, 0) for lane in lanes}
    return find_lack(rollout.model.name, rollout.candidate.number, weights, now)


def _is_in_force(rollout: Rollout) -> bool:
    in_force = Plan.objects.filter(in_force__model=rollout.model_id).first()
    return in_force is not None and in_force.number == rollout.plan


def _last_sent(row: GatewayInstance | None, candidates: set[str]) -> datetime | None:
    replicas = row.report.get("replicas") if row is not None else None
    if not isinstance(replicas, dict):
        return None
    times = [
        facts["last_sent_at"]
        for name, facts in replicas.items()
        if name in candidates
        and isinstance(facts, dict)
        and isinstance(facts.get("last_sent_at"), int | float)
    ]
    return datetime.fromtimestamp(max(times), tz=UTC) if times else None
