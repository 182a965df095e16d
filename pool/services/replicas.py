"""Moves replicas. The only place that writes a phase, always by compare-and-set on (id, generation, phase)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from pool.domain.backoff import Failure, FailureKind, History
from pool.domain.replica import MOVES, Fail, Phase, Report, phase_after
from pool.models import DeviceClaim, Intent, PhaseChange, PortReservation, Replica
from pool.services.routing import TableNumber, rebuild_table

IN_TABLE = frozenset({Phase.PENDING, Phase.STARTING, Phase.LOADING, Phase.WARMING, Phase.READY})
"""Phases that the routing table knows of, as ready or as coming."""


@dataclass(frozen=True)
class Seen:
    """The state that a decision was made on; the write is void if the row has moved since."""

    id: str
    generation: int
    phase: Phase


@dataclass(frozen=True)
class Because:
    code: str
    text: str


def seen(replica: Replica) -> Seen:
    return Seen(replica.pk, replica.generation, Phase(replica.phase))


def move(at: Seen, to: Phase, *, because: Because, now: datetime, **values: Any) -> TableNumber | None:
    """Moves the replica and, where the routing table names it, the table. None: someone was first.

    Call inside a transaction.
    """
    if to not in MOVES[at.phase]:
        raise ValueError(f"a replica does not go from {at.phase} to {to}")
    generation = values.get("generation", at.generation)
    moved = Replica.objects.filter(pk=at.id, generation=at.generation, phase=at.phase).update(
        phase=to,
        reason_code=because.code,
        reason_text=because.text,
        phase_entered_at=now,
        progress_at=None,
        **values,
    )
    if not moved:
        return None
    PhaseChange.objects.create(
        replica_id=at.id,
        generation=generation,
        phase=to,
        reason_code=because.code,
        reason_text=because.text,
        at=now,
    )
    return rebuild_table()


def fail(at: Seen, decision: Fail, *, now: datetime) -> bool:
    """→ failed with the history to store; reservations stay until the node has cleared up."""
    failure = decision.failure
    with transaction.atomic():
        moved = move(
            at,
            Phase.FAILED,
            because=Because(failure.code, failure.message),
            now=now,
            failure_kind=failure.kind,
            next_retry_at=decision.retry_at,
            ready_at=None,
            load={},
            **_history_values(decision.history),
        )
        Intent.objects.filter(replica_id=at.id, generation=at.generation, phase="pending").update(
            phase="void", done_at=now
        )
        DeviceClaim.objects.filter(replica_id=at.id, generation=at.generation).delete()
    return moved is not None


def retry(at: Seen, *, reason: str, now: datetime) -> bool:
    """→ pending: place, process facts and drain facts are cleared, the history stays."""
    with transaction.atomic():
        moved = move(
            at,
            Phase.PENDING,
            because=Because("retry", reason),
            now=now,
            node=None,
            device_uuids=[],
            address="",
            port=None,
            pid=None,
            pid_started_ticks=None,
            stage="",
            engine="unseen",
            routed=False,
            restart_asked=False,
            failure_kind="",
            next_retry_at=None,
            unrouted_epoch=None,
            unrouted_version=None,
            drain_deadline_at=None,
            stop_sent_at=None,
            stop_forced=False,
            reserved_bytes=None,
            ready_at=None,
            load={},
            load_measured_at=None,
        )
        if moved:
            release_reservations(at.id)
    return moved is not None


def begin_drain(at: Seen, *, reason: str, deadline_at: datetime, now: datetime) -> bool:
    """→ draining: out of the routing table; the table's number is kept, because gateways must acknowledge it."""
    with transaction.atomic():
        table = move(
            at, Phase.DRAINING, because=Because("drain", reason), now=now, drain_deadline_at=deadline_at
        )
        if table is None:
            return False
        Replica.objects.filter(pk=at.id).update(unrouted_epoch=table.epoch, unrouted_version=table.version)
        DeviceClaim.objects.filter(replica_id=at.id, generation=at.generation).delete()
    return True


def send_stop(at: Seen, *, force: bool, reason: str, now: datetime) -> bool:
    """A stop (or kill) intent for this generation; the phase stays. Safe to repeat."""
    with transaction.atomic():
        sent = Replica.objects.filter(pk=at.id, generation=at.generation, phase=at.phase).update(
            stop_sent_at=now, stop_forced=force
        )
        replica = Replica.objects.get(pk=at.id)
        if not sent or replica.node_id is None:
            return False
        Intent.objects.filter(
            replica=replica, generation=at.generation, action="start", phase="pending"
        ).update(phase="void", done_at=now)
        Intent.objects.get_or_create(
            replica=replica,
            generation=at.generation,
            action="kill" if force else "stop",
            defaults={"node_id": replica.node_id, "parameters": {"reason": reason}},
        )
    return True


def mark_stopped(at: Seen, *, reason: str, now: datetime) -> bool:
    with transaction.atomic():
        moved = move(
            at,
            Phase.STOPPED,
            because=Because("stopped", reason),
            now=now,
            pid=None,
            pid_started_ticks=None,
            stage="",
            load={},
            reserved_bytes=None,
            ready_at=None,
        )
        if moved:
            release_reservations(at.id)
            Intent.objects.filter(replica_id=at.id, phase="pending").update(phase="void", done_at=now)
    return moved is not None


def release_reservations(replica_id: str) -> None:
    PortReservation.objects.filter(replica_id=replica_id).delete()
    DeviceClaim.objects.filter(replica_id=replica_id).delete()


def history_of(replica: Replica) -> History:
    crashes = tuple(datetime.fromisoformat(at) for at in replica.crashes_at)
    return History(failed_starts=replica.failed_starts, crashes_at=crashes)


def _history_values(history: History) -> dict[str, object]:
    return {
        "failed_starts": history.failed_starts,
        "crashes_at": [at.isoformat() for at in history.crashes_at],
    }


def report(at: Seen, what: Report, *, because: Because, now: datetime, **values: Any) -> bool:
    """What a node says of the current generation while it comes up. False: late or repeated, nothing changed."""
    target = phase_after(at.phase, what)
    if target is None:
        return False
    if what is Report.WARMED_UP:
        values |= {"ready_at": now, "routed": True, "failed_starts": 0}
    with transaction.atomic():
        moved = move(at, target, because=because, now=now, **values)
        if moved and what is Report.ENGINE_ANSWERS:
            # Its memory is profiled: the next start on the device may begin.
            DeviceClaim.objects.filter(replica_id=at.id, generation=at.generation).delete()
    return moved is not None


def note(at: Seen, **values: Any) -> bool:
    """Facts of the current generation that move nothing: stage, load, log tail, engine seen or ended."""
    return bool(Replica.objects.filter(pk=at.id, generation=at.generation).update(**values))


def show_reason(at: Seen, because: Because) -> None:
    """Why the replica stays in its phase; void when it has moved."""
    Replica.objects.filter(pk=at.id, generation=at.generation, phase=at.phase).update(
        reason_code=because.code, reason_text=because.text
    )


def note_failure(at: Seen, failure: Failure, **values: Any) -> bool:
    """The node saw the engine die or refuse; control decides what follows within its next pass."""
    return note(
        at, failure_kind=failure.kind, reason_code=failure.code, reason_text=failure.message, **values
    )


def failure_of(replica: Replica) -> Failure | None:
    if not replica.failure_kind:
        return None
    return Failure(FailureKind(replica.failure_kind), replica.reason_code, replica.reason_text)


def drain_deadline(now: datetime, seconds: int) -> datetime:
    return now + timedelta(seconds=seconds)
