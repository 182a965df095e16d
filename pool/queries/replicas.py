"""Replicas as people see them: where they run, how far they are and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet

from pool.models import Intent, PhaseChange, Replica, Runtime
from pool.queries.ages import Age, age_of

CHANGES_SHOWN = 200
INTENTS_SHOWN = 50
ENDED_SHOWN_FOR = timedelta(hours=1)
LIVE_PHASES = ("pending", "starting", "loading", "warming", "ready", "draining", "failed")


@dataclass(frozen=True)
class ReplicaRow:
    id: str
    model: str
    release: int
    version: str
    lane: str | None
    """None: all lanes."""
    phase: str
    reason: str
    """Stable code; empty where the phase says it all."""
    reason_text: str
    failure_kind: str
    retryable: bool | None
    """Whether a failed replica is tried again by itself; None: it has not failed."""
    stage: str
    """What the engine does while it comes up, as its log says."""
    since: datetime
    wish: str
    restart_asked: bool
    generation: int
    node: str | None
    device_uuids: tuple[str, ...]
    runtime: str
    engine_kind: str | None
    """vllm or sim; None while no node has the runtime."""
    engine: str
    """What the node last said of the process tree: unseen, running, ended, gone."""
    address: str
    port: int | None
    pid: int | None
    routed: bool
    progress_at: datetime | None
    next_retry_at: datetime | None
    failed_starts: int
    created_at: datetime
    started_at: datetime | None
    ready_at: datetime | None
    max_model_len: int | None
    reserved_bytes: int | None
    figures: dict[str, object]
    load: dict[str, object]
    load_measured: Age


@dataclass(frozen=True)
class PhaseStep:
    generation: int
    phase: str
    reason: str
    reason_text: str
    at: datetime
    lasted_s: float | None
    """None: this is the phase that it is in."""


@dataclass(frozen=True)
class IntentRow:
    id: int
    action: str
    phase: str
    generation: int
    node: str
    created_at: datetime
    claimed_at: datetime | None
    done_at: datetime | None
    result: str


@dataclass(frozen=True)
class ReplicaView:
    replica: ReplicaRow
    placement_reason: str
    drain_deadline_at: datetime | None
    stop_sent_at: datetime | None
    stop_forced: bool
    log_tail: str
    history: tuple[PhaseStep, ...]
    """Oldest first."""
    intents: tuple[IntentRow, ...]
    """Newest first."""


@dataclass(frozen=True)
class ReplicaStatus:
    """A replica as `./sluice status --json` prints it."""

    id: str
    model: str
    release: int
    lane: str | None
    phase: str
    reason: str
    pid: int | None


def list_replicas(
    *, now: datetime, limit: int = 500, offset: int = 0, model: str = "", phase: str = "", node: str = ""
) -> tuple[ReplicaRow, ...]:
    """Newest first, ended ones included. 2 queries."""
    rows = _with_names(Replica.objects.order_by("-created_at", "id"))
    if model:
        rows = rows.filter(release__model__name=model)
    if phase:
        rows = rows.filter(phase=phase)
    if node:
        rows = rows.filter(node__name=node)
    return _rows(rows[offset : offset + limit], now=now)


def list_live_replicas(*, now: datetime) -> tuple[ReplicaRow, ...]:
    """All that are wished, run or failed, and those that ended within the last hour. 2 queries."""
    rows = Replica.objects.filter(phase__in=LIVE_PHASES) | Replica.objects.filter(
        phase_entered_at__gt=now - ENDED_SHOWN_FOR
    )
    return _rows(
        _with_names(rows.order_by("release__model__name", "release__number", "lane", "created_at")), now=now
    )


def find_replica(replica_id: str, *, now: datetime) -> ReplicaView | None:
    """4 queries."""
    row = _with_names(Replica.objects.filter(pk=replica_id)).first()
    if row is None:
        return None
    return ReplicaView(
        replica=_rows([row], now=now)[0],
        placement_reason=row.placement_reason,
        drain_deadline_at=row.drain_deadline_at,
        stop_sent_at=row.stop_sent_at,
        stop_forced=row.stop_forced,
        log_tail=row.log_tail,
        history=_load_history(replica_id),
        intents=_load_intents(replica_id),
    )


def has_replica(replica_id: str) -> bool:
    return Replica.objects.filter(pk=replica_id).exists()


def list_replica_status() -> tuple[ReplicaStatus, ...]:
    """1 query."""
    rows = _with_names(Replica.objects.exclude(phase="stopped")).order_by("created_at", "id")
    return tuple(
        ReplicaStatus(
            id=row.pk,
            model=row.release.model.name,
            release=row.release.number,
            lane=row.lane or None,
            phase=row.phase,
            reason=row.reason_code,
            pid=row.pid,
        )
        for row in rows
    )


def _with_names(rows: QuerySet[Replica]) -> QuerySet[Replica]:
    return rows.select_related("release__model", "release__version", "node")


def _rows(rows: Iterable[Replica], *, now: datetime) -> tuple[ReplicaRow, ...]:
    kinds = dict(Runtime.objects.values_list("name", "kind"))
    return tuple(
        ReplicaRow(
            id=row.pk,
            model=row.release.model.name,
            release=row.release.number,
            version=row.release.version.name,
            lane=row.lane or None,
            phase=row.phase,
            reason=row.reason_code,
            reason_text=row.reason_text,
            failure_kind=row.failure_kind,
            retryable=_is_retryable(row),
            stage=row.stage,
            since=row.phase_entered_at,
            wish=row.wish,
            restart_asked=row.restart_asked,
            generation=row.generation,
            node=row.node.name if row.node else None,
            device_uuids=tuple(row.device_uuids),
            runtime=row.release.runtime,
            engine_kind=kinds.get(row.release.runtime),
            engine=row.engine,
            address=row.address,
            port=row.port,
            pid=row.pid,
            routed=row.routed,
            progress_at=row.progress_at,
            next_retry_at=row.next_retry_at,
            failed_starts=row.failed_starts,
            created_at=row.created_at,
            started_at=row.started_at,
            ready_at=row.ready_at,
            max_model_len=row.max_model_len,
            reserved_bytes=row.reserved_bytes,
            figures=row.figures,
            load=row.load,
            load_measured=age_of(row.load_measured_at, now=now),
        )
        for row in rows
    )


def _is_retryable(row: Replica) -> bool | None:
    """A transient failure is retried a few times; after that no time is set for another try."""
    if not row.failure_kind:
        return None
    return row.next_retry_at is not None if row.phase == "failed" else row.failure_kind != "permanent"


def _load_history(replica_id: str) -> tuple[PhaseStep, ...]:
    newest = PhaseChange.objects.filter(replica_id=replica_id).order_by("-id")[:CHANGES_SHOWN]
    changes = list(newest)[::-1]
    ends: list[datetime | None] = [change.at for change in changes[1:]]
    return tuple(
        PhaseStep(
            generation=change.generation,
            phase=change.phase,
            reason=change.reason_code,
            reason_text=change.reason_text,
            at=change.at,
            lasted_s=None if end is None else round((end - change.at).total_seconds(), 3),
        )
        for change, end in zip(changes, [*ends, None], strict=False)
    )


def _load_intents(replica_id: str) -> tuple[IntentRow, ...]:
    rows = Intent.objects.filter(replica_id=replica_id).select_related("node").order_by("-id")[:INTENTS_SHOWN]
    return tuple(
        IntentRow(
            id=row.pk,
            action=row.action,
            phase=row.phase,
            generation=row.generation,
            node=row.node.name,
            created_at=row.created_at,
            claimed_at=row.claimed_at,
            done_at=row.done_at,
            result=row.result,
        )
        for row in rows
    )
