"""Traffic plans, the routing table and the gateways that apply it."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from pool.models.catalog import Model


class Plan(models.Model):
    """An immutable, numbered traffic plan; weights are {release number: percent} and sum to 100."""

    model = models.ForeignKey(Model, models.PROTECT, related_name="plans")
    number = models.PositiveIntegerField()
    weights = models.JSONField()
    lanes = models.JSONField(default=dict, blank=True)
    pins = models.JSONField(default=dict, blank=True)
    shadow = models.JSONField(null=True, blank=True)
    rollback_of = models.PositiveIntegerField(null=True)
    rollout_base = models.PositiveIntegerField(null=True)
    """Number of the plan before the rollout that wrote this one: one click goes back there, past its steps."""
    comment = models.TextField(default="", blank=True)
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["model", "number"], name="plan_number_once_per_model"),
        ]

    def __str__(self) -> str:
        return f"plan {self.number}"


class PlanInForce(models.Model):
    """The one plan in force of a model; its row is the lock under which plans change."""

    model = models.OneToOneField(Model, models.CASCADE, primary_key=True, related_name="in_force")
    plan = models.OneToOneField(Plan, models.PROTECT, related_name="in_force")
    since = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.model_id}: {self.plan_id}"


class RoutingState(models.Model):
    """The one row with the newest routing table; (epoch, version) only ever rises."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    installation = models.CharField(max_length=64)
    epoch = models.BigIntegerField()
    version = models.BigIntegerField()
    body = models.BinaryField()
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_routing_state")]

    def __str__(self) -> str:
        return f"{self.epoch}.{self.version}"


class GatewaySnapshot(models.Model):
    """What pages show of a gateway process; written only while that process does not reach Redis."""

    id = models.CharField(max_length=64, primary_key=True)
    at = models.DateTimeField()
    body = models.JSONField()

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.id


class GatewayInstance(models.Model):
    """A gateway process as its last beat described it."""

    id = models.CharField(max_length=64, primary_key=True)
    host = models.CharField(max_length=255, default="", blank=True)
    pid = models.PositiveIntegerField(null=True)
    started_at = models.DateTimeField(null=True)
    epoch = models.BigIntegerField(default=0)
    version = models.BigIntegerField(default=0)
    applied_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField()
    via = models.CharField(max_length=8)
    draining = models.BooleanField(default=False)
    gone_at = models.DateTimeField(null=True)
    report = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.id
