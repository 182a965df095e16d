"""Profiler runs of one replica: wished here, begun and ended by its node, the newest few kept."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from pool.domain.replica import Phase as ReplicaPhase
from pool.domain.step_profiles import (
    KEPT_PER_REPLICA,
    MAX_RESULT_BYTES,
    MAX_STEPS,
    OPEN,
    USUAL_STEPS,
    Lost,
    Phase,
    find_loss,
)
from pool.models import Intent, Node, Replica, Runtime, StepProfile
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found

REASON_CHARACTERS = 500


class ReplicaNotReady(Conflict):
    code: ClassVar[str] = "replica_not_ready"


class EngineIsSimulated(Conflict):
    code: ClassVar[str] = "engine_is_simulated"


class ProfileIsOpen(Conflict):
    code: ClassVar[str] = "profile_is_open"


def ask_profile(
    replica_id: str, *, steps: int = USUAL_STEPS, actor: Actor, now: datetime | None = None
) -> StepProfile:
    """Of a ready replica of a real engine, one at a time. Raises Invalid, NotFound or one of the above."""
    now = now or timezone.now()
    if not 1 <= steps <= MAX_STEPS:
        raise Invalid(f"A profile takes 1 to {MAX_STEPS} steps.", field="steps", steps=steps)
    with transaction.atomic():
        replica, node = _lock_ready(replica_id)
        for run in StepProfile.objects.select_for_update().filter(replica=replica, phase__in=OPEN):
            _give_up(run, replica, now=now)
        intent = Intent.objects.create(
            node=node,
            replica=replica,
            generation=replica.generation,
            action="profile",
            parameters={"steps": steps},
        )
        run = StepProfile.objects.create(
            replica=replica,
            generation=replica.generation,
            intent=intent,
            steps_asked=steps,
            asked_by=actor.name,
            asked_at=now,
        )
        _forget_old(replica)
        record(
            actor,
            "replica.profile",
            subject=f"replica/{replica_id}",
            generation=replica.generation,
            steps=steps,
        )
    return run


def _lock_ready(replica_id: str) -> tuple[Replica, Node]:
    replica = (
        Replica.objects.select_for_update(of=("self",))
        .select_related("release", "node")
        .filter(pk=replica_id)
    ).first()
    if replica is None:
        raise not_found("replica", replica_id)
    if replica.phase != ReplicaPhase.READY or replica.node is None:
        raise ReplicaNotReady(
            f"Replica {replica_id} is {replica.phase}. Only a ready one makes steps: wait until it serves.",
            phase=replica.phase,
        )
    kinds = Runtime.objects.filter(node=replica.node, name=replica.release.runtime)
    if kinds.filter(kind="sim").exists():
        raise EngineIsSimulated("A simulated engine computes nothing, so there is nothing to profile.")
    return replica, replica.node


def _give_up(run: StepProfile, replica: Replica, *, now: datetime) -> None:
    """Raises ProfileIsOpen while its result may still come."""
    lost = find_loss(
        asked_at=run.asked_at,
        generation=run.generation,
        current_generation=replica.generation,
        replica_is_ready=True,
        now=now,
    )
    if lost is None:
        raise ProfileIsOpen(
            f"A profile of replica {replica.pk} is {run.phase} already. Its result comes by itself.",
            profile=run.pk,
        )
    if run.intent_id is not None:
        open_intent = Intent.objects.filter(pk=run.intent_id, phase__in=["pending", "claimed"])
        open_intent.update(phase="void", done_at=now)
    fail_profile(run.pk, lost, now=now)


def _forget_old(replica: Replica) -> None:
    kept = StepProfile.objects.filter(replica=replica).order_by("-id").values("pk")[:KEPT_PER_REPLICA]
    StepProfile.objects.filter(replica=replica).exclude(pk__in=kept).delete()


def begin_profile(intent: Intent, *, now: datetime) -> StepProfile | None:
    """The run of an intent, running now; None where it is over or its replica has left meanwhile."""
    run = (
        StepProfile.objects.select_related("replica")
        .filter(intent=intent, phase__in=OPEN, generation=F("replica__generation"))
        .first()
    )
    if run is None:
        return None
    lost = find_loss(
        asked_at=run.asked_at,
        generation=run.generation,
        current_generation=run.replica.generation,
        replica_is_ready=run.replica.phase == ReplicaPhase.READY,
        now=now,
    )
    if lost is not None:
        fail_profile(run.pk, lost, now=now)
        return None
    StepProfile.objects.filter(pk=run.pk, phase__in=OPEN).update(phase=Phase.RUNNING, started_at=now)
    return run


def store_profile(run_id: int, *, figures: dict[str, Any], flame: dict[str, Any], now: datetime) -> bool:
    """False when it came too late: given up, or the replica has another generation. Raises Invalid: too large."""
    size = len(json.dumps([figures, flame]))
    if size > MAX_RESULT_BYTES:
        raise Invalid("The profile is too large to be kept.", size_bytes=size, limit_bytes=MAX_RESULT_BYTES)
    return bool(_running(run_id).update(phase=Phase.DONE, done_at=now, figures=figures, flame=flame))


def fail_profile(run_id: int, why: Lost, *, now: datetime) -> bool:
    return bool(
        StepProfile.objects.filter(pk=run_id, phase__in=OPEN).update(
            phase=Phase.FAILED,
            done_at=now,
            reason_code=why.code,
            reason_text=why.text[:REASON_CHARACTERS],
        )
    )


def _running(run_id: int) -> Any:
    return StepProfile.objects.filter(pk=run_id, phase=Phase.RUNNING, generation=F("replica__generation"))
