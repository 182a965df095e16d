"""What gateways hold back for a while: made by alerts or by people, ended by time, recovery or a click."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from pool.domain.ladder import AVAILABLE, LASTS, VALUES, Step
from pool.models import Lane, Model, Restriction
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.routing import rebuild_table

LONGEST = timedelta(hours=24)
AUTOMATIC = "slo"
"""The actor of the loop."""


@dataclass(frozen=True)
class RestrictionWish:
    """`lane` empty: all. `value` None: the kind's own."""

    kind: str
    lane: str = ""
    value: float | None = None
    lasts: timedelta = LASTS
    reason: str = ""


def restrict(
    model_name: str,
    wish: RestrictionWish,
    *,
    actor: Actor,
    now: datetime,
    alert: int | None = None,
    dry_run: bool = False,
) -> Restriction:
    """Gates obey within a second or two. One of the same kind that holds already is prolonged, never shortened."""
    _check(wish)
    with transaction.atomic():
        model = Model.objects.select_for_update().filter(name=model_name).first()
        if model is None:
            raise not_found("model", model_name)
        if wish.lane and not Lane.objects.filter(model=model, name=wish.lane).exists():
            raise not_found("lane", wish.lane)
        until = now + wish.lasts
        found = Restriction.objects.filter(
            model=model, lane=wish.lane, kind=wish.kind, dry_run=dry_run, ended_at=None
        ).first()
        if found is None:
            found = Restriction.objects.create(
                model=model,
                lane=wish.lane,
                kind=wish.kind,
                value=VALUES.get(Step(wish.kind), 0.0) if wish.value is None else wish.value,
                until=until,
                reason=wish.reason[:300],
                alert_id=alert,
                dry_run=dry_run,
                made_by=actor.name,
                created_at=now,
            )
        elif found.until < until:
            found.until = until
            found.save(update_fields=["until"])
        record(
            actor,
            "restriction.would_set" if dry_run else "restriction.set",
            subject=f"model/{model_name}",
            restriction=found.pk,
            kind=wish.kind,
            lane=wish.lane,
            value=found.value,
            until=found.until.isoformat(),
        )
        if not dry_run:
            rebuild_table()
    return found


def prolong(rows: Sequence[int], *, until: datetime) -> None:
    """What called for them is still measured. No audit row: nothing changes for anybody."""
    with transaction.atomic():
        if Restriction.objects.filter(pk__in=rows, ended_at=None, until__lt=until).update(until=until):
            rebuild_table()


def take_back(restriction_id: int, *, actor: Actor, now: datetime, reason: str = "taken_back") -> Restriction:
    """Raises Conflict if it has ended already."""
    with transaction.atomic():
        found = Restriction.objects.select_related("model").filter(pk=restriction_id).first()
        if found is None:
            raise not_found("restriction", restriction_id)
        if not _end([restriction_id], now=now, by=actor.name, reason=reason):
            raise Conflict("The restriction has ended already. Load the page again.")
        record(
            actor,
            "restriction.end",
            subject=f"model/{found.model.name}",
            restriction=found.pk,
            kind=found.kind,
            lane=found.lane,
            reason=reason,
        )
        rebuild_table()
    found.refresh_from_db()
    return found


def end_due(now: datetime) -> int:
    """Notes what has run out: gates ended it by themselves at that second."""
    with transaction.atomic():
        due = list(Restriction.objects.filter(ended_at=None, until__lte=now).values_list("pk", flat=True))
        ended = _end(due, now=now, by=AUTOMATIC, reason="ran_out") if due else 0
        if ended:
            rebuild_table()
    return ended


def _end(rows: Sequence[int], *, now: datetime, by: str, reason: str) -> int:
    return Restriction.objects.filter(pk__in=rows, ended_at=None).update(
        ended_at=now, ended_by=by, end_reason=reason
    )


def _check(wish: RestrictionWish) -> None:
    if wish.kind not in {step.value for step in AVAILABLE}:
        raise Invalid(f"There is no restriction {wish.kind!r}.", field="kind")
    if not timedelta(seconds=10) <= wish.lasts <= LONGEST:
        raise Invalid("A restriction lasts between 10 seconds and a day.", field="lasts_s")
    if wish.value is not None and not 0 < wish.value < 1 and wish.kind == Step.ADMISSION_RATIO:
        raise Invalid("The ratio lies between 0 and 1.", field="value")
