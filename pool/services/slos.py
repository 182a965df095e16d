"""Writes of SLOs: made, changed, proposed, accepted, dismissed and ended, and what a pass counts for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from pool.domain.qos import RANKS
from pool.domain.slo import (
    QUANTILES,
    SHORT_TARGET_MS,
    SloSettings,
    Window,
    make_settings,
    propose_settings,
    read_settings,
    write_settings,
)
from pool.domain.slo_signals import SloRef, count_window
from pool.models import Lane, Model, Slo, SloSpan
from pool.services.alerts import LONGEST_HOLD, close_for_slo
from pool.services.audit import Actor, loop_actor, record
from pool.services.errors import Conflict, Invalid, not_found

LONGEST_LABEL = 63
SPANS_KEPT = timedelta(days=32)


@dataclass(frozen=True)
class SloWish:
    """Empty parts of the scope = all. `settings` are laid over those of the template, which are scaled to the
    lane's TTFT target."""

    lane: str = ""
    tier: str = ""
    label: str = ""
    template: str = "interactive"
    settings: Mapping[str, Any] | None = None


def create_slo(model_name: str, wish: SloWish, *, actor: Actor, now: datetime) -> Slo:
    """Takes the place of a proposal of the same scope. Raises Conflict where one is in force."""
    with transaction.atomic():
        model = _lock_model(model_name)
        _check_scope(model, wish)
        settings = _lay_over(model, wish)
        scope = {"model": model, "lane": wish.lane, "tier": wish.tier, "label": wish.label}
        found = Slo.objects.select_for_update().filter(**scope).first()
        if found is not None and found.phase == "active":
            raise Conflict("There is an SLO for this scope already. Change that one.", slo=found.pk)
        slo = found or Slo(**scope, created_at=now)
        slo.phase, slo.template, slo.created_by = "active", wish.template, actor.name
        slo.settings, slo.changed_at = write_settings(settings), now
        slo.save()
        _record(slo, "slo.create", actor, settings=slo.settings)
    return slo


def change_slo(slo_id: int, settings: Mapping[str, Any], *, actor: Actor, now: datetime) -> Slo:
    """Those named change. What was counted before was counted by the limits of then. Raises InvalidSlo."""
    with transaction.atomic():
        slo = _lock(slo_id)
        before = read_settings(slo.settings)
        after = read_settings({**write_settings(before), **settings})
        old, new = asdict(before), asdict(after)
        changes = {name: [old[name], value] for name, value in new.items() if old[name] != value}
        if changes:
            slo.settings, slo.changed_at = write_settings(after), now
            slo.save(update_fields=["settings", "changed_at"])
            _record(slo, "slo.change", actor, changes=changes)
    return slo


def end_slo(slo_id: int, *, actor: Actor, now: datetime) -> None:
    """With its counts; its alerts are closed and stay in the history."""
    with transaction.atomic():
        slo = _lock(slo_id)
        close_for_slo(slo, now=now)
        _record(slo, "slo.end", actor, settings=slo.settings)
        slo.delete()


def accept_proposal(slo_id: int, *, actor: Actor, now: datetime) -> Slo:
    with transaction.atomic():
        slo = _lock(slo_id)
        if slo.phase == "active":
            raise Conflict("The SLO is in force already.")
        slo.phase, slo.created_by, slo.changed_at = "active", actor.name, now
        slo.save(update_fields=["phase", "created_by", "changed_at"])
        _record(slo, "slo.accept", actor, settings=slo.settings, figures=slo.figures)
    return slo


def dismiss_proposal(slo_id: int, *, actor: Actor, now: datetime) -> Slo:
    """It is not made again, unless somebody makes the SLO."""
    with transaction.atomic():
        slo = _lock(slo_id)
        if slo.phase == "active":
            raise Conflict("The SLO is in force. End it instead.")
        if slo.phase != "dismissed":
            slo.phase, slo.changed_at = "dismissed", now
            slo.save(update_fields=["phase", "changed_at"])
            _record(slo, "slo.dismiss", actor)
    return slo


def hold_slo(slo_id: int, *, lasts: timedelta | None, actor: Actor, now: datetime) -> Slo:
    """No automatic action of it for so long; None ends the hold."""
    if lasts is not None and not timedelta() < lasts <= LONGEST_HOLD:
        raise Invalid("A hold lasts at most seven days.", field="lasts_s")
    with transaction.atomic():
        slo = _lock(slo_id)
        slo.held_until = None if lasts is None else now + lasts
        slo.held_by = "" if lasts is None else actor.name
        slo.save(update_fields=["held_until", "held_by"])
        until = None if slo.held_until is None else slo.held_until.isoformat()
        _record(slo, "slo.release" if lasts is None else "slo.hold", actor, until=until)
    return slo


def propose_slo(model_name: str, lane: str, window: Window, *, now: datetime) -> Slo | None:
    """From what was measured; None while that is too little, or where the lane has an SLO or had a proposal."""
    settings = propose_settings(window)
    if settings is None:
        return None
    with transaction.atomic():
        model = _lock_model(model_name)
        slo, is_new = Slo.objects.get_or_create(
            model=model, lane=lane, tier="", label="",
            defaults={
                "phase": "proposed", "settings": write_settings(settings), "figures": _figures(window),
                "created_at": now, "created_by": "slo", "changed_at": now,
            },
        )  # fmt: skip
        if is_new:
            _record(slo, "slo.propose", loop_actor("slo"), settings=slo.settings, figures=slo.figures)
    return slo if is_new else None


def store_spans(slo: SloRef, windows: Mapping[datetime, Window], *, counted_until: datetime) -> None:
    """What is there already is replaced: a span is always counted whole."""
    rows = [_span(slo, at, window) for at, window in windows.items()]
    with transaction.atomic():
        if not Slo.objects.select_for_update().filter(pk=slo.id).update(counted_until=counted_until):
            return
        SloSpan.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["slo", "at"],
            update_fields=["requests", "streams", *_PROMISES],
        )


def store_reports(reports: Mapping[int, Mapping[str, Any]]) -> None:
    """What pages show. Not a change of the SLO: no audit row."""
    Slo.objects.bulk_update([Slo(pk=slo, report=report) for slo, report in reports.items()], ["report"])


def forget_spans(now: datetime) -> int:
    return SloSpan.objects.filter(at__lt=now - SPANS_KEPT).delete()[0]


_PROMISES = (*QUANTILES, "errors", "degraded", "interrupted")


def _span(slo: SloRef, at: datetime, window: Window) -> SloSpan:
    broken = {name: count.bad for name, count in count_window(window, slo.settings).items()}
    return SloSpan(
        slo_id=slo.id, at=at, requests=window.requests, streams=window.ttft.count, **broken
    )  # fmt: skip


def _figures(window: Window) -> dict[str, Any]:
    return {
        "streams": window.ttft.count,
        "requests": window.requests,
        **{f"{name}_s": window.ttft.quantile(share) for name, share in QUANTILES.items()},
        **{name: window.counts.get(name, 0) for name in ("errors", "degraded", "interrupted")},
    }


def _lay_over(model: Model, wish: SloWish) -> SloSettings:
    target = Lane.objects.filter(model=model, name=wish.lane).values_list("ttft_target_ms", flat=True).first()
    usual = make_settings(wish.template, ttft_target_ms=target or SHORT_TARGET_MS)
    return read_settings({**write_settings(usual), **(wish.settings or {})})


def _check_scope(model: Model, wish: SloWish) -> None:
    if wish.lane and not Lane.objects.filter(model=model, name=wish.lane).exists():
        raise not_found("lane", wish.lane)
    if wish.tier and wish.tier not in RANKS:
        raise Invalid(f"A tier is one of {', '.join(RANKS)}.", field="tier")
    if len(wish.label) > LONGEST_LABEL:
        raise Invalid(f"A label has at most {LONGEST_LABEL} characters.", field="label")


def _record(slo: Slo, action: str, actor: Actor, **details: Any) -> None:
    scope = {"lane": slo.lane, "tier": slo.tier, "label": slo.label}
    record(actor, action, subject=f"model/{slo.model.name}", slo=slo.pk, **scope, **details)


def _lock(slo_id: int) -> Slo:
    slo = Slo.objects.select_for_update(of=("self",)).select_related("model").filter(pk=slo_id).first()
    if slo is None:
        raise not_found("slo", slo_id)
    return slo


def _lock_model(name: str) -> Model:
    model = Model.objects.select_for_update().filter(name=name).first()
    if model is None:
        raise not_found("model", name)
    return model
