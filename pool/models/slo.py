"""SLOs, what is left of their budgets, alerts, restrictions of the gateways, and notices to the outside."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from pool.models.base import NameField, name_constraint
from pool.models.catalog import Model

LEVEL_LENGTH = 8


class Slo(models.Model):
    """What is promised to the requests of a scope; an empty part of the scope means all. `settings` as
    `pool/domain/slo.py` writes them."""

    model = models.ForeignKey(Model, models.CASCADE, related_name="slos")
    lane = models.CharField(max_length=63, default="", blank=True)
    tier = models.CharField(max_length=16, default="", blank=True)
    label = models.CharField(max_length=63, default="", blank=True)
    template = models.CharField(max_length=63, default="", blank=True)
    phase = models.CharField(max_length=12, default="active")
    """`proposed` (waits for a person), `active`, `dismissed` (a proposal nobody wants: it is not made again)."""
    settings = models.JSONField(default=dict)
    figures = models.JSONField(default=dict, blank=True)
    """What a proposal was made from."""
    report = models.JSONField(default=dict, blank=True)
    """What the last pass found: a reading for each promise, the window, the data's state."""
    counted_until = models.DateTimeField(null=True)
    """Spans before it are complete."""
    held_until = models.DateTimeField(null=True)
    """An operator wants no automatic action until then."""
    held_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.CharField(max_length=150, default="", blank=True)
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model_id", "lane", "tier", "label"]
        constraints = [
            models.UniqueConstraint(fields=["model", "lane", "tier", "label"], name="one_slo_per_scope"),
            models.CheckConstraint(
                condition=Q(phase__in=["proposed", "active", "dismissed"]), name="slo_phase_known"
            ),
        ]

    def __str__(self) -> str:
        return "/".join(part for part in (self.model.name, self.lane, self.tier, self.label) if part)


class SloSpan(models.Model):
    """Five minutes of an SLO: requests, and how many broke each promise as it was then. Kept for 32 days."""

    slo = models.ForeignKey(Slo, models.CASCADE, related_name="spans")
    at = models.DateTimeField()
    requests = models.IntegerField(default=0)
    streams = models.IntegerField(default=0)
    """Requests with a first token."""
    ttft_p50 = models.IntegerField(default=0)
    ttft_p95 = models.IntegerField(default=0)
    ttft_p99 = models.IntegerField(default=0)
    """Streams slower than each limit."""
    errors = models.IntegerField(default=0)
    degraded = models.IntegerField(default=0)
    interrupted = models.IntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["slo", "at"], name="one_span_per_slo_and_time")]

    def __str__(self) -> str:
        return f"{self.slo_id} {self.at}"


class Alert(models.Model):
    """From the first level above normal to the return. `subject` tells what it is about in one line."""

    source = models.CharField(max_length=12)
    """`slo`, `golden` or `resource`."""
    rule = models.CharField(max_length=63)
    subject = models.CharField(max_length=200)
    slo = models.ForeignKey(Slo, models.SET_NULL, null=True, related_name="alerts")
    model = models.CharField(max_length=63, default="", blank=True)
    lane = models.CharField(max_length=63, default="", blank=True)
    level = models.CharField(max_length=LEVEL_LENGTH)
    peak = models.CharField(max_length=LEVEL_LENGTH)
    """The highest level that it had."""
    opened_at = models.DateTimeField()
    level_since = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    close_reason = models.CharField(max_length=32, default="", blank=True)
    """`fell`, `no_data`, `not_watched` (the rule, the SLO or the subject is gone)."""
    evidence = models.JSONField(default=dict)
    """Value, limits, window, samples, data state; of the newest pass that could judge it."""
    data_state = models.CharField(max_length=12, default="measured")
    seen_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=150, default="", blank=True)
    held_until = models.DateTimeField(null=True)
    """No action for this alert until then."""
    held_by = models.CharField(max_length=150, default="", blank=True)

    class Meta:
        ordering = ["-opened_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["source", "rule", "subject"], condition=Q(closed_at=None), name="one_open_alert"
            )
        ]
        indexes = [models.Index(fields=["closed_at"], name="alert_by_end")]

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}"


class AlertEvent(models.Model):
    """The history of an alert, in order."""

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="events")
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)
    """`raised`, `lowered`, `closed`, `acknowledged`, `held`, `released`, `acted`, `ended`, `blocked`."""
    level = models.CharField(max_length=LEVEL_LENGTH, default="", blank=True)
    by = models.CharField(max_length=150, default="", blank=True)
    details = models.JSONField(default=dict)

    class Meta:
        ordering = ["alert_id", "at", "id"]

    def __str__(self) -> str:
        return f"{self.alert_id} {self.kind}"


class AlertWatch(models.Model):
    """The state of a watched value that is not simply normal (`AlertState`), so that a restart forgets nothing."""

    key = models.CharField(max_length=300, primary_key=True)
    """Source, rule and subject."""
    state = models.JSONField()
    alert = models.ForeignKey(Alert, models.SET_NULL, null=True, related_name="+")
    changed_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.key


class Restriction(models.Model):
    """What gateways hold back for a while. It is in the routing table while `ended_at` is None."""

    model = models.ForeignKey(Model, models.CASCADE, related_name="restrictions")
    lane = models.CharField(max_length=63, default="", blank=True)
    kind = models.CharField(max_length=24)
    value = models.FloatField(default=0)
    until = models.DateTimeField()
    reason = models.CharField(max_length=300, default="", blank=True)
    alert = models.ForeignKey(Alert, models.SET_NULL, null=True, related_name="restrictions")
    dry_run = models.BooleanField(default=False)
    """Decided and told, never in the routing table."""
    made_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)
    ended_by = models.CharField(max_length=150, default="", blank=True)
    end_reason = models.CharField(max_length=16, default="", blank=True)
    """`taken_back` (by a person), `recovered`, `ran_out`."""

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["model", "lane", "kind", "dry_run"],
                condition=Q(ended_at=None),
                name="one_restriction_of_a_kind",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=["shed_batch", "close_lane", "no_long", "admission_ratio"]),
                name="restriction_kind_known",
            ),
            models.CheckConstraint(
                condition=~Q(kind="admission_ratio") | Q(value__gt=0, value__lt=1),
                name="restriction_ratio_is_one",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.lane}"


class RuleChange(models.Model):
    """An operator's own limits of a rule of `pool/domain/resource_rules.py`."""

    rule = models.CharField(max_length=63, primary_key=True)
    settings = models.JSONField(default=dict)
    changed_at = models.DateTimeField(default=timezone.now)
    changed_by = models.CharField(max_length=150, default="", blank=True)

    def __str__(self) -> str:
        return self.rule


class Webhook(models.Model):
    """Whom to tell of alerts. What signs the notices is derived (`pool/domain/signing.py`), stored nowhere."""

    name = NameField(unique=True)
    url = models.CharField(max_length=500)
    least_level = models.CharField(max_length=LEVEL_LENGTH, default="yellow")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.CharField(max_length=150, default="", blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [name_constraint("webhook")]

    def __str__(self) -> str:
        return self.name


class Notice(models.Model):
    """The outbox: written with the change that it tells of, sent afterwards, tried again for a while."""

    webhook = models.ForeignKey(Webhook, models.CASCADE, related_name="notices")
    alert = models.ForeignKey(Alert, models.CASCADE, null=True, related_name="notices")
    body = models.JSONField()
    created_at = models.DateTimeField()
    due_at = models.DateTimeField(null=True)
    """None = sent, or given up."""
    attempts = models.PositiveSmallIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    problem = models.CharField(max_length=64, default="", blank=True)
    """Code of the last failure; never a word of what the receiver answered."""

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["due_at"], name="notice_by_due", condition=Q(due_at__isnull=False))]

    def __str__(self) -> str:
        return f"{self.webhook_id} {self.created_at}"
