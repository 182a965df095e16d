"""Alerts, their history, restrictions and webhooks for pages and API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q

from pool.domain.alerting import LEVELS, Level
from pool.domain.resource_rules import RULES, Rule, read_rule
from pool.models import Alert, AlertEvent, Notice, Restriction, RuleChange, Webhook


@dataclass(frozen=True)
class AlertRow:
    """`level` is `normal` once closed; `peak` is the highest it had. `evidence`: of the newest pass that could judge
    it, seen at `seen_at`; `data_state`: of the newest pass."""

    id: int
    source: str
    rule: str
    subject: str
    slo: int | None
    model: str
    lane: str
    level: str
    peak: str
    opened_at: datetime
    level_since: datetime
    closed_at: datetime | None
    close_reason: str
    evidence: dict[str, object]
    data_state: str
    seen_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str
    held_until: datetime | None
    held_by: str


@dataclass(frozen=True)
class EventRow:
    at: datetime
    kind: str
    level: str
    by: str
    details: dict[str, object]


@dataclass(frozen=True)
class RestrictionRow:
    """It holds while `ended_at` is null and `until` is not over. A rehearsal (`dry_run`) never holds."""

    id: int
    model: str
    lane: str
    kind: str
    value: float
    until: datetime
    reason: str
    alert: int | None
    dry_run: bool
    made_by: str
    created_at: datetime
    ended_at: datetime | None
    ended_by: str
    end_reason: str


@dataclass(frozen=True)
class WebhookRow:
    """`problem`: of the newest notice that failed since the last one that arrived; empty: none."""

    id: int
    name: str
    url: str
    least_level: str
    enabled: bool
    created_at: datetime
    created_by: str
    sent_at: datetime | None
    waiting: int
    problem: str


@dataclass(frozen=True)
class RuleRow:
    """`enter`: level → the value from which on it is reached."""

    name: str
    subject: str
    unit: str
    enter: dict[str, float]
    enter_hold_s: float
    exit_hold_s: float
    is_golden: bool
    is_changed: bool
    off: bool


@dataclass(frozen=True)
class AlertCounts:
    """Of open alerts. For the overview's tile."""

    plan: int = 0
    yellow: int = 0
    orange: int = 0
    red: int = 0
    restrictions: int = 0

    @property
    def worst(self) -> str:
        found = [level.word for level in reversed(Level) if getattr(self, level.word, 0)]
        return found[0] if found else Level.NORMAL.word


def list_alerts(
    *, is_open: bool | None = None, model: str = "", limit: int = 100, offset: int = 0
) -> tuple[AlertRow, ...]:
    """Open ones first by level, then the newest. 1 query."""
    rows = Alert.objects.all()
    if is_open is not None:
        rows = rows.filter(closed_at__isnull=is_open)
    if model:
        rows = rows.filter(model=model)
    found = [_alert(row) for row in rows.order_by("-opened_at", "-id")[offset : offset + limit]]
    return tuple(sorted(found, key=lambda row: -LEVELS[row.level])) if is_open else tuple(found)


def find_alert(alert_id: int) -> AlertRow | None:
    row = Alert.objects.filter(pk=alert_id).first()
    return None if row is None else _alert(row)


def list_events(alert_id: int, *, limit: int = 200) -> tuple[EventRow, ...]:
    """The newest first."""
    rows = AlertEvent.objects.filter(alert_id=alert_id).order_by("-at", "-id")[:limit]
    return tuple(EventRow(row.at, row.kind, row.level, row.by, row.details) for row in rows)


def list_restrictions(
    *,
    model: str = "",
    alert: int | None = None,
    is_active: bool | None = None,
    limit: int = 100,
    offset: int = 0,
) -> tuple[RestrictionRow, ...]:
    """The newest first. 1 query."""
    rows: Any = Restriction.objects.select_related("model").order_by("-created_at", "-id")
    if model:
        rows = rows.filter(model__name=model)
    if alert is not None:
        rows = rows.filter(alert_id=alert)
    if is_active is not None:
        rows = rows.filter(ended_at__isnull=is_active)
    return tuple(restriction_row(row) for row in rows[offset : offset + limit])


def find_restriction(restriction_id: int) -> RestrictionRow | None:
    row = Restriction.objects.select_related("model").filter(pk=restriction_id).first()
    return None if row is None else restriction_row(row)


def restriction_row(row: Restriction) -> RestrictionRow:
    return RestrictionRow(
        row.pk, row.model.name, row.lane, row.kind, row.value, row.until, row.reason, row.alert_id, row.dry_run,
        row.made_by, row.created_at, row.ended_at, row.ended_by, row.end_reason,
    )  # fmt: skip


def count_alerts() -> AlertCounts:
    """2 queries."""
    levels = dict(Alert.objects.filter(closed_at=None).values_list("level").annotate(Count("pk")).order_by())
    held = Restriction.objects.filter(ended_at=None, dry_run=False).count()
    return AlertCounts(
        **{word: levels.get(word, 0) for word in ("plan", "yellow", "orange", "red")}, restrictions=held
    )


def list_webhooks() -> tuple[WebhookRow, ...]:
    """2 queries and 1 a webhook, of which there are few."""
    waiting = Count("notices", filter=Q(notices__due_at__isnull=False))
    return tuple(webhook_row(row, row.waiting) for row in Webhook.objects.annotate(waiting=waiting))


def find_webhook(name: str) -> WebhookRow | None:
    return next((row for row in list_webhooks() if row.name == name), None)


def webhook_row(row: Webhook, waiting: int = 0) -> WebhookRow:
    newest = Notice.objects.filter(webhook=row, attempts__gt=0).order_by("-created_at", "-id").first()
    sent = Notice.objects.filter(webhook=row, sent_at__isnull=False).order_by("-sent_at").first()
    return WebhookRow(
        row.pk, row.name, row.url, row.least_level, row.enabled, row.created_at, row.created_by,
        None if sent is None else sent.sent_at, waiting, "" if newest is None else newest.problem,
    )  # fmt: skip


def list_rules() -> tuple[RuleRow, ...]:
    """With what operators changed. 1 query."""
    stored = dict(RuleChange.objects.values_list("rule", "settings"))
    return tuple(_rule(rule, stored.get(name)) for name, rule in RULES.items())


def find_rule(name: str) -> RuleRow | None:
    return next((row for row in list_rules() if row.name == name), None)


def list_alert_spans(model: str, *, start: datetime, end: datetime) -> tuple[AlertRow, ...]:
    """Alerts of a model that were open at some time in [start, end): for time axes."""
    rows = Alert.objects.filter(model=model, opened_at__lt=end)
    rows = rows.filter(Q(closed_at=None) | Q(closed_at__gte=start))
    return tuple(_alert(row) for row in rows.order_by("opened_at")[:500])


def _rule(rule: Rule, stored: dict[str, Any] | None) -> RuleRow:
    read = read_rule(rule, stored or {})
    return RuleRow(
        rule.name,
        rule.subject,
        rule.unit,
        {level.word: read.limits.enter[level] for level in sorted(read.limits.enter)},
        _seconds(read.limits.enter_hold),
        _seconds(read.limits.exit_hold),
        rule.is_golden,
        stored is not None,
        bool((stored or {}).get("off")),
    )


def _seconds(length: timedelta) -> float:
    return length.total_seconds()


def _alert(row: Alert) -> AlertRow:
    return AlertRow(
        row.pk, row.source, row.rule, row.subject, row.slo_id, row.model, row.lane, row.level, row.peak,
        row.opened_at, row.level_since, row.closed_at, row.close_reason, row.evidence, row.data_state, row.seen_at,
        row.acknowledged_at, row.acknowledged_by, row.held_until, row.held_by,
    )  # fmt: skip
