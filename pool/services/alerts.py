"""Alerts: opened, raised, lowered and closed as the signals of a pass say; acknowledged and held by people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from pool.domain.alerting import LEVELS, AlertState, Change, Level, Reading, Signal, next_state
from pool.models import Alert, AlertEvent, AlertWatch, Slo
from pool.services.audit import Actor, record
from pool.services.errors import Conflict, Invalid, not_found
from pool.services.notices import queue_notices

LONGEST_HOLD = timedelta(days=7)
# What a pass writes: never what a person wrote meanwhile.
_JUDGED = ("level", "level_since", "peak", "evidence", "data_state", "seen_at", "closed_at", "close_reason")


@dataclass(frozen=True)
class Standing:
    """Of one signal after a pass. `alert`: the open one's id."""

    signal: Signal
    level: Level
    alert: int | None
    held_until: datetime | None = None


def judge_signals(
    signals: Sequence[Signal], *, subjects_gone: Iterable[str] = (), now: datetime
) -> list[Standing]:
    """One pass over all watched values, in one transaction. Idempotent: the same signals at the same time change
    nothing more. `subjects_gone`: watched keys whose SLO, rule or subject is no more."""
    with transaction.atomic():
        stored = {
            row.pk: row for row in AlertWatch.objects.select_for_update(of=("self",)).select_related("alert")
        }
        standings = [_judge(signal, stored.get(signal.key), now) for signal in signals]
        _drop([row for key in subjects_gone if (row := stored.get(key)) is not None], now)
    return standings


def list_watched() -> dict[str, AlertState]:
    return {key: AlertState.from_json(state) for key, state in AlertWatch.objects.values_list("key", "state")}


def acknowledge(alert_id: int, *, actor: Actor, now: datetime) -> Alert:
    """Somebody looks at it. A second time changes nothing."""
    with transaction.atomic():
        alert = _lock(alert_id)
        if alert.acknowledged_at is None:
            alert.acknowledged_at, alert.acknowledged_by = now, actor.name
            alert.save(update_fields=["acknowledged_at", "acknowledged_by"])
            _note(alert, "acknowledged", now=now, by=actor.name)
            record(actor, "alert.acknowledge", subject=f"alert/{alert_id}", rule=alert.rule, of=alert.subject)
    return alert


def hold(alert_id: int, *, lasts: timedelta | None, actor: Actor, now: datetime) -> Alert:
    """No automatic action for it, and for its lane, for so long; None ends the hold. Raises Conflict once closed."""
    if lasts is not None and not timedelta() < lasts <= LONGEST_HOLD:
        raise Invalid("A hold lasts at most seven days.", field="lasts_s")
    with transaction.atomic():
        alert = _lock(alert_id)
        if alert.closed_at is not None:
            raise Conflict("The alert is closed: there is nothing to hold.")
        alert.held_until = None if lasts is None else now + lasts
        alert.held_by = "" if lasts is None else actor.name
        alert.save(update_fields=["held_until", "held_by"])
        until = None if alert.held_until is None else alert.held_until.isoformat()
        _note(alert, "released" if lasts is None else "held", now=now, by=actor.name, until=until)
        action = "alert.release" if lasts is None else "alert.hold"
        record(actor, action, subject=f"alert/{alert_id}", rule=alert.rule, of=alert.subject, until=until)
    return alert


def note_action(alert_id: int, kind: str, *, now: datetime, **details: object) -> None:
    """`acted`, `ended` or `blocked`. A block that was told last is not told again."""
    if kind == "blocked":
        last = (
            AlertEvent.objects.filter(alert_id=alert_id, kind__in=("blocked", "acted"))
            .order_by("-id")
            .first()
        )
        if last is not None and last.kind == "blocked" and last.details == details:
            return
    AlertEvent.objects.create(alert_id=alert_id, at=now, kind=kind, by="slo", details=details)


def close_for_slo(slo: Slo, *, now: datetime) -> None:
    """Inside the transaction that ends the SLO."""
    _drop(list(AlertWatch.objects.filter(alert__slo=slo).select_related("alert")), now)


def _judge(signal: Signal, row: AlertWatch | None, now: datetime) -> Standing:
    before = AlertState() if row is None else AlertState.from_json(row.state)
    state, change = next_state(before, signal.reading, signal.limits, now=now)
    alert = None if row is None else row.alert
    if change is not None:
        alert = _follow(change, signal, alert, now)
    elif alert is not None:
        _refresh(alert, signal, now)
    _keep_state(signal.key, row, before, state, alert, cool_down=signal.limits.cool_down, now=now)
    return Standing(
        signal, state.level, None if alert is None else alert.pk, None if alert is None else alert.held_until
    )


def _keep_state(
    key: str,
    row: AlertWatch | None,
    before: AlertState,
    state: AlertState,
    alert: Alert | None,
    *,
    cool_down: timedelta,
    now: datetime,
) -> None:
    cooled = state.left_at is None or now - state.left_at >= cool_down
    if state.is_quiet and cooled:
        if row is not None:
            row.delete()
        return
    if row is None or state != before:
        AlertWatch.objects.update_or_create(
            key=key, defaults={"state": state.to_json(), "alert": alert, "changed_at": now}
        )


def _follow(change: Change, signal: Signal, alert: Alert | None, now: datetime) -> Alert | None:
    """The open alert after the change; None where it closed."""
    if alert is None:
        alert = Alert(
            source=signal.source, rule=signal.rule, subject=signal.subject, model=signal.model, lane=signal.lane,
            slo_id=signal.slo, opened_at=now, level=change.after.word, peak=change.after.word,
            level_since=now, seen_at=now,
        )  # fmt: skip
    if change.after is Level.NORMAL:
        _close(alert, change.reason, now, reading=signal.reading)
        return None
    alert.level, alert.level_since = change.after.word, now
    alert.peak = max(LEVELS[alert.peak], change.after).word
    _show(alert, signal, now)
    alert.save(update_fields=None if alert.pk is None else _JUDGED)
    kind = "raised" if change.after > change.before else "lowered"
    _note(alert, kind, now=now, value=signal.reading.value, samples=signal.reading.samples)
    queue_notices(alert, kind, now=now)
    return alert


def _refresh(alert: Alert, signal: Signal, now: datetime) -> None:
    """What the page shows of an alert that stays as it is. Evidence stays that of the last pass that had any."""
    if signal.reading.is_known:
        _show(alert, signal, now)
    else:
        alert.data_state = signal.reading.state
    alert.save(update_fields=["evidence", "data_state", "seen_at"])


def _show(alert: Alert, signal: Signal, now: datetime) -> None:
    alert.evidence = {
        "value": signal.reading.value,
        "samples": signal.reading.samples,
        "limits": {level.word: limit for level, limit in signal.limits.enter.items()},
        **({"by_level": _by_word(signal.reading)} if signal.reading.by_level else {}),
        **signal.evidence,
    }
    alert.data_state, alert.seen_at = signal.reading.state, now


def _by_word(reading: Reading) -> Mapping[str, float]:
    return {level.word: value for level, value in reading.by_level.items()}


def _drop(rows: Sequence[AlertWatch], now: datetime) -> None:
    for row in rows:
        if row.alert is not None and row.alert.closed_at is None:
            _close(row.alert, "not_watched", now)
        row.delete()


def _close(alert: Alert, reason: str, now: datetime, *, reading: Reading | None = None) -> None:
    alert.closed_at, alert.close_reason = now, reason
    alert.level_since, alert.level = now, Level.NORMAL.word
    if reading is not None:
        alert.data_state = reading.state
    alert.save(update_fields=None if alert.pk is None else _JUDGED)
    value = None if reading is None else reading.value
    _note(alert, "closed", now=now, reason=reason, value=value)
    queue_notices(alert, "closed", now=now)


def _note(alert: Alert, kind: str, *, now: datetime, by: str = "", **details: Any) -> None:
    AlertEvent.objects.create(alert=alert, at=now, kind=kind, level=alert.level, by=by, details=details)


def _lock(alert_id: int) -> Alert:
    alert = Alert.objects.select_for_update().filter(pk=alert_id).first()
    if alert is None:
        raise not_found("alert", alert_id)
    return alert
