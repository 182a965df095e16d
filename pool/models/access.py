"""Callers' keys, API tokens, repeated requests, the audit trail and the leases of loops."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from pool.models.base import NameField, name_constraint


class Key(models.Model):
    """A caller's gateway key: only its HMAC is stored, and a prefix to recognise it by. A limit of None: none."""

    name = NameField(unique=True)
    digest = models.CharField(max_length=64, unique=True)
    prefix = models.CharField(max_length=16)
    tier = models.CharField(max_length=16, default="standard")
    allowed_models = models.JSONField(null=True, blank=True)
    may_pin = models.BooleanField(default=False)
    label = models.CharField(max_length=63, default="", blank=True)
    requests_per_min = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_min = models.PositiveIntegerField(null=True, blank=True)
    keepalive_s = models.FloatField(null=True, blank=True)
    capture_ratio = models.FloatField(default=0.0)
    """Share of its requests whose masked texts are kept for a while."""
    created_at = models.DateTimeField(default=timezone.now)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            name_constraint("key"),
            models.CheckConstraint(
                condition=models.Q(tier__in=["vip", "standard", "batch"]), name="key_tier_known"
            ),
            models.CheckConstraint(
                condition=models.Q(requests_per_min=None) | models.Q(requests_per_min__gte=1),
                name="key_requests_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(tokens_per_min=None) | models.Q(tokens_per_min__gte=1),
                name="key_tokens_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(keepalive_s=None) | models.Q(keepalive_s__gte=1),
                name="key_keepalive_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(capture_ratio__gte=0, capture_ratio__lte=1), name="key_capture_is_a_share"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ApiToken(models.Model):
    """A token of the REST API; it acts as its user. Only its HMAC is stored."""

    name = NameField()
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    digest = models.CharField(max_length=64, unique=True)
    prefix = models.CharField(max_length=16)
    created_at = models.DateTimeField(default=timezone.now)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["user_id", "name"]
        constraints = [
            models.UniqueConstraint(fields=["user", "name"], name="token_name_once_per_user"),
            name_constraint("token"),
        ]

    def __str__(self) -> str:
        return self.name


class AuditEntry(models.Model):
    """Who changed what, when and from where; never a key or a prompt."""

    at = models.DateTimeField(default=timezone.now)
    actor = models.CharField(max_length=150)
    source = models.CharField(max_length=16)
    action = models.CharField(max_length=63)
    subject = models.CharField(max_length=255)
    details = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, default="", blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["subject", "-id"], name="audit_by_subject")]

    def __str__(self) -> str:
        return f"{self.action} {self.subject}"


class IdempotencyRecord(models.Model):
    """The answer to a POST with an Idempotency-Key, replayed when it is repeated."""

    actor = models.CharField(max_length=150)
    key = models.CharField(max_length=255)
    path = models.CharField(max_length=512)
    body_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    answer = models.JSONField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return self.key


class LoopLease(models.Model):
    """The one owner of a loop."""

    name = models.CharField(max_length=63, primary_key=True)
    holder = models.UUIDField()
    until = models.DateTimeField()
    beat_at = models.DateTimeField()
    report = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.name
