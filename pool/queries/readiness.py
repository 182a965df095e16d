"""Readiness to go back: for one model or for all of them, in a fixed number of queries, without Redis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, Q

from pool.domain.backoff import FailureKind
from pool.domain.capacity import ratio_of
from pool.domain.readiness import NOWHERE_TO, Applies, Return, State, Target, judge_return, median_start
from pool.domain.rollout import ACTIVE
from pool.models import (
    GatewayInstance,
    Model,
    PhaseChange,
    Plan,
    Release,
    Replica,
    Rollout,
    RoutingState,
    Scale,
    VersionPresence,
)
from pool.queries.capacity import Demand, load_demand, load_release_capacities
from pool.queries.gateways import SILENT_AFTER
from pool.queries.plans import PlanRow, find_rollback_target, plan_row

_COMING: Final = ("pending", "starting", "loading", "warming")
_PLANS: Final = 50
_STARTS: Final = 5
"""The newest starts that a measured start is the median of."""
_CHANGES: Final = 400
_STARTS_FOR: Final = timedelta(days=30)
_LONGEST_APPLY: Final = timedelta(minutes=1)


@dataclass(frozen=True)
class Readiness:
    """`plan`, `release`: what one click goes back to, and its release with the most weight; None: nowhere. All else is
    of its slowest release. `seconds` None: not known. `capacity_ratio`: what the ready replicas carry ÷ the present
    demand at the old weights; None: not known, or no demand."""

    model: str
    state: State
    plan: int | None
    release: int | None
    seconds: float | None
    capacity_ratio: float | None
    capacity_samples: int
    """Requests that the ratio stands on."""
    replicas_ready: int
    replicas_wanted: int
    start_s: float | None
    """A measured start; None: none was measured in 30 days."""
    starts: int
    applies_s: float | None
    """How long the gateways took for the newest table; None: not measured since they began."""
    gateways: int
    """That live."""
    gateways_silent: int
    """That have said nothing for some seconds: they may serve the old plan on."""
    reason: str
    at: datetime


@dataclass(frozen=True)
class Goal:
    """The plan that one click goes back to; None: nowhere, and why."""

    plan: PlanRow | None
    why: str = ""


def load_readiness(model: str, now: datetime) -> Readiness | None:
    """None: there is no such model. 18 queries at most."""
    return next(iter(list_readiness(now, models=(model,))), None)


def list_readiness(now: datetime, *, models: Iterable[str] | None = None) -> tuple[Readiness, ...]:
    """By name; of all models unless some are named. 18 queries at most, whatever their number."""
    rows = Model.objects.order_by("name")
    names = list(
        (rows if models is None else rows.filter(name__in=list(models))).values_list("name", flat=True)
    )
    goals = _load_goals(names)
    wanted = {name: _weights(goal.plan) for name, goal in goals.items() if goal.plan is not None}
    if not wanted:
        return tuple(_nowhere(name, goals[name].why, now) for name in names)
    facts = _load_facts(wanted, now)
    applies = _load_applies(now)
    demand = load_demand(wanted, now)
    ratios = _load_ratios(goals, wanted, demand, now)
    found = []
    for name in names:
        plan = goals[name].plan
        if plan is None:
            found.append(_nowhere(name, goals[name].why, now))
            continue
        back = judge_return(
            [facts[name, number] for number in wanted[name] if (name, number) in facts], applies
        )
        found.append(_readiness(name, plan, back, applies, ratios.get(name, (None, 0)), now))
    return tuple(found)


def _readiness(
    name: str, plan: PlanRow, back: Return, applies: Applies, carried: tuple[float | None, int], now: datetime
) -> Readiness:
    ratio, samples = carried
    return Readiness(
        model=name,
        state=back.state,
        plan=plan.number,
        release=back.release,
        seconds=back.seconds,
        capacity_ratio=ratio,
        capacity_samples=samples,
        replicas_ready=back.ready,
        replicas_wanted=back.wanted,
        start_s=back.start_s,
        starts=back.starts,
        applies_s=applies.seconds,
        gateways=applies.gateways,
        gateways_silent=applies.silent,
        reason=back.reason,
        at=now,
    )


def _nowhere(name: str, why: str, now: datetime) -> Readiness:
    return Readiness(
        name,
        State.NOWHERE,
        None,
        None,
        None,
        None,
        0,
        0,
        0,
        None,
        0,
        None,
        0,
        0,
        why or NOWHERE_TO.reason,
        now,
    )


def _load_goals(names: Sequence[str]) -> dict[str, Goal]:
    """3 queries."""
    bases = dict(
        Rollout.objects.filter(model__name__in=names, phase__in=ACTIVE).values_list(
            "model__name", "base_plan"
        )
    )
    recent = Q(number__gt=F("model__in_force__plan__number") - _PLANS) | Q(number__in=set(bases.values()))
    rows = Plan.objects.filter(recent, model__name__in=names)
    current = dict(
        Plan.objects.filter(in_force__model__name__in=names).values_list("in_force__model__name", "number")
    )
    plans: dict[str, list[PlanRow]] = defaultdict(list)
    for row in rows.select_related("model").order_by("-number"):
        plans[row.model.name].append(plan_row(row, in_force=current[row.model.name]))
    return {name: _find_goal(plans[name], bases.get(name)) for name in names}


def _find_goal(plans: Sequence[PlanRow], base: int | None) -> Goal:
    """`base`: where an active rollout goes back to. `plans`: newest first."""
    if base is not None:
        return Goal(
            next((plan for plan in plans if plan.number == base), None), f"plan {base} is too long ago"
        )
    in_force = next((plan for plan in plans if plan.in_force), None)
    if in_force is None:
        return Goal(None, "no plan is in force")
    if in_force.rollback_of is not None:
        return Goal(None, f"plan {in_force.number} is a rollback to plan {in_force.rollback_of} already")
    return Goal(find_rollback_target(plans), "no older plan")


def _weights(plan: PlanRow) -> dict[int, int]:
    """Release → its largest weight in any lane, those without any left out."""
    found: dict[int, int] = {}
    for weights in (plan.weights, *plan.lanes.values()):
        for number, percent in weights.items():
            if percent:
                found[int(number)] = max(found.get(int(number), 0), percent)
    return found


def _load_facts(wanted: Mapping[str, Mapping[int, int]], now: datetime) -> dict[tuple[str, int], Target]:
    """5 queries."""
    releases = {
        release.pk: release
        for release in Release.objects.filter(_any_of(wanted)).select_related("model", "version")
    }
    scales: dict[int, int] = defaultdict(int)
    for release_id, count in Scale.objects.filter(release__in=releases).values_list("release_id", "replicas"):
        scales[release_id] += count
    replicas: dict[int, list[Replica]] = defaultdict(list)
    for row in Replica.objects.filter(release__in=releases, wish="run").exclude(phase="stopped"):
        replicas[row.release_id].append(row)
    starts = _load_starts(releases, now)
    states: dict[int, set[str]] = defaultdict(set)
    versions = {release.version_id for release in releases.values()}
    for version_id, phase in VersionPresence.objects.filter(version__in=versions).values_list(
        "version_id", "phase"
    ):
        states[version_id].add(phase)
    return {
        (release.model.name, release.number): _target(
            release, wanted[release.model.name][release.number], scales[release.pk], replicas[release.pk],
            starts[release.pk], states[release.version_id], now,
        )
        for release in releases.values()
    }  # fmt: skip


def _any_of(wanted: Mapping[str, Mapping[int, int]]) -> Q:
    condition = Q(pk__in=())
    for name, weights in wanted.items():
        condition |= Q(model__name=name, number__in=list(weights))
    return condition


def _target(  # noqa: PLR0913 - one row of each kind that was read
    release: Release,
    percent: int,
    wished: int,
    rows: list[Replica],
    starts: list[float],
    files: set[str],
    now: datetime,
) -> Target:
    coming = [row for row in rows if row.phase in _COMING]
    return Target(
        number=release.number,
        percent=percent,
        wanted=wished,
        ready=sum(row.phase == "ready" and row.routed for row in rows),
        starting_s=tuple(_elapsed_s(row, now) for row in coming),
        start_s=median_start(starts),
        starts=len(starts),
        barred=_find_bar(rows, files),
    )


def _elapsed_s(row: Replica, now: datetime) -> float:
    """Since its engine was started; 0 while it waits for a place: the time of an earlier start may stand there."""
    if row.phase == "pending" or row.started_at is None:
        return 0.0
    return max(0.0, (now - row.started_at).total_seconds())


def _find_bar(rows: Iterable[Replica], files: set[str]) -> str:
    for row in rows:
        given_up = row.failure_kind == FailureKind.PERMANENT or row.next_retry_at is None
        if row.phase == "failed" and given_up:
            return f"replica {row.pk} cannot start: {row.reason_text}"
    if not files & {"present", "wanted", "verifying"}:
        return "no node holds its weights"
    return ""


def _load_starts(releases: Mapping[int, Any], now: datetime) -> dict[int, list[float]]:
    """Seconds of the newest starts of each release: from the engine's start to ready. 1 query."""
    rows = (
        PhaseChange.objects.filter(
            replica__release__in=releases, phase__in=("starting", "ready"), at__gte=now - _STARTS_FOR
        )
        .order_by("-id")
        .values_list("replica__release_id", "replica_id", "generation", "phase", "at")[:_CHANGES]
    )
    ready: dict[tuple[str, int], datetime] = {}
    found: dict[int, list[float]] = defaultdict(list)
    for release_id, replica, generation, phase, at in rows:
        if phase == "ready":
            ready[replica, generation] = at
        elif (replica, generation) in ready and len(found[release_id]) < _STARTS:
            found[release_id].append((ready.pop((replica, generation)) - at).total_seconds())
    return found


def _load_applies(now: datetime) -> Applies:
    """Of gateways that ran already when the newest table was made. 2 queries."""
    table = RoutingState.objects.filter(pk=1).values_list("epoch", "version", "changed_at").first()
    known = list(GatewayInstance.objects.filter(gone_at=None))
    live = [row for row in known if row.seen_at > now - SILENT_AFTER]
    silent = len(known) - len(live)
    if table is None:
        return Applies(None, len(live), silent)
    took = [
        row.applied_at - table[2]
        for row in live
        if row.applied_at is not None
        and (row.epoch, row.version) >= table[:2]
        and row.started_at is not None
        and row.started_at < table[2]
    ]
    sound = [lag for lag in took if lag < _LONGEST_APPLY]
    longest_s = max((max(0.0, lag.total_seconds()) for lag in sound), default=None)
    return Applies(longest_s, len(live), silent)


def _load_ratios(
    goals: Mapping[str, Goal],
    wanted: Mapping[str, Mapping[int, int]],
    demand: Mapping[str, Demand],
    now: datetime,
) -> dict[str, tuple[float | None, int]]:
    """The smallest over the releases of the plan, with the samples of that release. 4 queries, or none."""
    asked = {name: list(weights) for name, weights in wanted.items() if demand.get(name)}
    if not asked:
        return {}
    capacities = load_release_capacities(asked, demand, now)
    found: dict[str, tuple[float | None, int]] = {}
    for (name, number), told in capacities.items():
        plan = goals[name].plan
        assert plan is not None
        weights = {lane: plan.lanes.get(lane, plan.weights).get(str(number), 0) for lane in told.rooms}
        totals = {lane: part.total for lane, part in demand[name].items()}
        ratio = ratio_of(told.capacities, totals, weights)
        samples = sum(one.samples for one in told.capacities.values())
        before = found.get(name, (None, 0))[0]
        if ratio is not None and (before is None or ratio < before):
            found[name] = (ratio, samples)
    return found
