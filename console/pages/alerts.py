"""Alerts: what is wrong now, since when, by which figures, what was done about it, and how to take that back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from console import alert_words as words
from console.access import Right, page_right
from console.pages.shell import actor_of, render_page
from console.templatetags.units import format_count
from pool.queries.alerts import (
    AlertRow,
    EventRow,
    RestrictionRow,
    count_alerts,
    find_alert,
    list_alerts,
    list_events,
    list_restrictions,
    list_webhooks,
)
from pool.queries.slo_windows import find_newest_cell
from pool.services import alerts, restrictions
from pool.services.errors import not_found

SHOWN_CLOSED = 50
STALE_AFTER = timedelta(seconds=60)
HOLDS = (
    (900, gettext_lazy("15 minutes")),
    (3600, gettext_lazy("an hour")),
    (28_800, gettext_lazy("8 hours")),
)


class HoldForm(forms.Form):
    lasts_s = forms.TypedChoiceField(choices=HOLDS, coerce=int)


@require_safe
@page_right(Right.VIEW)
def list_all(request: HttpRequest) -> HttpResponse:
    """The part that changes is fetched again every few seconds."""
    now = timezone.now()
    newest = find_newest_cell()
    context: dict[str, Any] = {
        "counts": count_alerts(),
        "open": [_row(row) for row in list_alerts(is_open=True, limit=200)],
        "closed": [_row(row) for row in list_alerts(is_open=False, limit=SHOWN_CLOSED)],
        "restrictions": [restriction_words(row, now) for row in list_restrictions(is_active=True)],
        "newest": newest,
        "is_stale": newest is not None and now - newest > STALE_AFTER,
    }
    if getattr(request, "htmx", False):
        return render_page(request, "alerts/rows.html", context, nav="alerts")
    context["webhooks"] = list_webhooks()
    return render_page(request, "alerts/page.html", context, nav="alerts")


@require_safe
@page_right(Right.VIEW)
def show(request: HttpRequest, alert_id: int) -> HttpResponse:
    row, now = _find(alert_id), timezone.now()
    context = {
        "alert": _row(row),
        "advice": words.rule_advice(row.rule),
        "limits": words.limit_words(row),
        "events": [_event(event, row) for event in list_events(alert_id)],
        "restrictions": [restriction_words(one, now) for one in list_restrictions(alert=alert_id)],
        "is_held": row.held_until is not None and row.held_until > now,
        "holds": HOLDS,
    }
    template = "alerts/facts.html" if getattr(request, "htmx", False) else "alerts/alert.html"
    return render_page(request, template, context, nav="alerts")


@require_POST
@page_right(Right.OPERATE)
def acknowledge(request: HttpRequest, alert_id: int) -> HttpResponse:
    alerts.acknowledge(alert_id, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("You have the alert. The others see that."))
    return redirect("alert", alert_id)


@require_POST
@page_right(Right.OPERATE)
def hold(request: HttpRequest, alert_id: int) -> HttpResponse:
    form = HoldForm(request.POST)
    lasts = timedelta(seconds=form.cleaned_data["lasts_s"]) if form.is_valid() else None
    alerts.hold(alert_id, lasts=lasts, actor=actor_of(request), now=timezone.now())
    done = _("Automatic actions are held.") if lasts else _("Automatic actions go on.")
    messages.success(request, done)
    return redirect("alert", alert_id)


@require_POST
@page_right(Right.OPERATE)
def take_back(request: HttpRequest, restriction_id: int) -> HttpResponse:
    """Back to where the button was: the alert, the model's traffic control, or the list."""
    ended = restrictions.take_back(restriction_id, actor=actor_of(request), now=timezone.now())
    messages.success(request, _("Taken back: gateways follow within a second or two."))
    if request.POST.get("back") == "control":
        return redirect("model-control", ended.model.name)
    return redirect("alert", ended.alert_id) if ended.alert_id else redirect("alert-list")


def restriction_words(row: RestrictionRow, now: datetime) -> dict[str, object]:
    return {
        "row": row,
        "what": words.step_words(row.kind, row.value),
        "lane": row.lane or _("all lanes"),
        "end": words.end_words(row.end_reason),
        "left": row.until - now if row.ended_at is None and row.until > now else None,
    }


def _find(alert_id: int) -> AlertRow:
    row = find_alert(alert_id)
    if row is None:
        raise not_found("alert", alert_id)
    return row


def _row(row: AlertRow) -> dict[str, object]:
    evidence = row.evidence
    return {
        "row": row,
        "title": words.rule_title(row.rule),
        "tone": words.LEVEL_TONES.get(row.level if row.closed_at is None else "normal", ""),
        "level": words.level_word(row.level) if row.closed_at is None else _("closed"),
        "peak": words.level_word(row.peak),
        "peak_tone": words.LEVEL_TONES.get(row.peak, ""),
        "value": words.format_value(evidence.get("value"), evidence.get("unit")),
        "evidence": words.evidence_words(row),
        "state": words.state_words(row.data_state),
        "state_tone": words.state_tone(row.data_state),
        "href": words.evidence_link(row),
        "close": words.end_words(row.close_reason),
        "lasted": None if row.closed_at is None else row.closed_at - row.opened_at,
    }


def _event(event: EventRow, row: AlertRow) -> dict[str, object]:
    return {"row": event, "words": _event_words(event, row), "tone": words.LEVEL_TONES.get(event.level, "")}


def _event_words(event: EventRow, row: AlertRow) -> str:
    details, unit = event.details, row.evidence.get("unit")
    step = words.step_words(str(details.get("step", "")))
    value = words.format_value(details.get("value"), unit)
    sentences = {
        "raised": _("Raised to %(level)s at %(value)s, %(samples)s samples"),
        "lowered": _("Lowered to %(level)s at %(value)s"),
        "closed": _("Closed: %(reason)s"),
        "acknowledged": _("Acknowledged"),
        "held": _("Automatic actions held"),
        "released": _("Automatic actions go on"),
        "acted": _("Would act: %(step)s (rehearsal)") if details.get("dry_run") else _("Acted: %(step)s"),
        "ended": _("Taken back: %(step)s"),
        "blocked": _("Not done: %(step)s, since %(block)s"),
    }
    samples = details.get("samples")
    return sentences.get(event.kind, event.kind) % {
        "level": words.level_word(event.level),
        "value": value,
        "samples": format_count(samples if isinstance(samples, int) else None),
        "reason": words.end_words(str(details.get("reason", ""))),
        "step": step,
        "block": words.block_words(str(details.get("reason", ""))),
    }
