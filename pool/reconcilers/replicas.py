"""Makes the wished replicas true: rows match the scales, each row takes its next step."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import DatabaseError, InterfaceError
from django.db.models import Count

from pool.domain.node import NodePhase
from pool.domain.replica import (
    BeginDrain,
    Decision,
    Drain,
    Engine,
    Fail,
    MarkStopped,
    Phase,
    Place,
    Replace,
    ReplicaFacts,
    Retry,
    SendStop,
    Wait,
    Wish,
    next_step,
)
from pool.models import Replica, Scale
from pool.queries.acknowledgements import GatewayView, count_in_flight, is_acknowledged, list_live_gateways
from pool.reconcilers.placing import Placing
from pool.services.replicas import (
    Because,
    begin_drain,
    drain_deadline,
    fail,
    failure_of,
    history_of,
    mark_stopped,
    retry,
    seen,
    send_stop,
    show_reason,
)
from pool.services.scales import match_scale

logger = logging.getLogger(__name__)

DRAIN_S = 120
"""A 4,000-token answer at 40 tokens/s takes 100 s; what is still running then ends with a typed error."""


def run_pass(now: datetime) -> dict[str, object]:
    changed = match_scales(now)
    gateways = list_live_gateways(now)
    placing = Placing(now)
    rows = Replica.objects.exclude(phase="stopped", wish="stop").select_related("release__version", "node")
    steps: dict[str, str] = {}
    for row in rows.order_by("created_at", "id"):
        decision = _step_safely(row, gateways, placing, now)
        if decision is not None and not isinstance(decision, Wait):
            steps[row.pk] = type(decision).__name__
    return {"changed": changed, "steps": steps}


def step_replica(replica_id: str, now: datetime) -> None:
    """The next step of one replica, out of turn: a node that sees an engine die does not wait for the loop."""
    row = Replica.objects.select_related("release__version", "node").filter(pk=replica_id).first()
    if row is not None:
        _step_safely(row, list_live_gateways(now), Placing(now), now)


def match_scales(now: datetime) -> int:
    """Creates the missing rows and marks the surplus ones. Returns how many rows it touched."""
    wanted = Replica.objects.filter(wish="run").values_list("release_id", "lane").annotate(count=Count("pk"))
    have = {(release_id, lane): count for release_id, lane, count in wanted.order_by()}
    return sum(
        match_scale(scale.pk, now=now)
        for scale in Scale.objects.all()
        if have.get((scale.release_id, scale.lane), 0) != scale.replicas
    )


def _step_safely(
    row: Replica, gateways: list[GatewayView], placing: Placing, now: datetime
) -> Decision | None:
    try:
        decision = next_step(_facts(row, gateways, placing), now=now)
        _apply(row, decision, placing, now)
    except (DatabaseError, InterfaceError):
        raise
    except Exception:
        # One replica's trouble must not stop the others; the next pass looks at it again.
        logger.exception("replica %s: its step failed", row.pk)
        return None
    return decision


def _facts(row: Replica, gateways: list[GatewayView], placing: Placing) -> ReplicaFacts:
    phase = Phase(row.phase)
    answer = placing.find(row) if phase in (Phase.PENDING, Phase.FAILED) and row.wish == "run" else None
    return ReplicaFacts(
        phase=phase,
        phase_entered_at=row.phase_entered_at,
        wanted=Wish(row.wish),
        restart_asked=row.restart_asked,
        placeable=None if answer is None else answer.placement is not None,
        placement_reason="" if answer is None else answer.reason,
        node=None if row.node is None else NodePhase(row.node.phase),
        engine=Engine(row.engine),
        failure=failure_of(row),
        history=history_of(row),
        next_retry_at=row.next_retry_at,
        routed=row.routed,
        budget=timedelta(seconds=row.budget_s or 600),
        progress_at=row.progress_at,
        drain=_drain(row, gateways),
        stop_sent_at=row.stop_sent_at,
        stop_forced=row.stop_forced,
    )


def _drain(row: Replica, gateways: list[GatewayView]) -> Drain:
    if row.unrouted_epoch is None or row.unrouted_version is None:
        return Drain(deadline_at=row.drain_deadline_at)
    order = (row.unrouted_epoch, row.unrouted_version)
    idle = None
    if row.load_measured_at is not None and row.load_measured_at > row.phase_entered_at:
        running, waiting = row.load.get("running"), row.load.get("waiting")
        idle = None if running is None or waiting is None else running + waiting == 0
    return Drain(
        deadline_at=row.drain_deadline_at,
        acknowledged=is_acknowledged(gateways, order),
        silent_gateways=tuple(g.id for g in gateways if g.silent and g.order < order),
        in_flight=count_in_flight(gateways, row.pk),
        engine_idle=idle,
    )


def _apply(row: Replica, decision: Decision, placing: Placing, now: datetime) -> None:
    at = seen(row)
    match decision:
        case Place():
            placing.place(row, at)
        case Fail():
            fail(at, decision, now=now)
        case Retry(reason) | Replace(reason):
            retry(at, reason=reason, now=now)
        case BeginDrain(reason):
            begin_drain(at, reason=reason, deadline_at=drain_deadline(now, DRAIN_S), now=now)
        case SendStop(force, reason):
            send_stop(at, force=force, reason=reason, now=now)
        case MarkStopped(reason):
            mark_stopped(at, reason=reason, now=now)
        case Wait(reason):
            _show_waiting(row, reason)


def _show_waiting(row: Replica, reason: str) -> None:
    """What it waits for is shown where the phase has no reason of its own from a failure."""
    if row.phase in ("pending", "draining") and row.reason_text != reason:
        show_reason(seen(row), Because("waiting", reason))
