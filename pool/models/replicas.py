"""Running engines, their history, ports, and what nodes are asked to do."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from pool.models.catalog import Release
from pool.models.nodes import Node

REPLICA_PHASES = ["pending", "starting", "loading", "warming", "ready", "draining", "stopped", "failed"]


class Replica(models.Model):
    """One engine of a release for one lane or for all (empty lane).

    The row holds its only generation in service: a new attempt raises `generation`, and every write
    from a node is a compare-and-set on (id, generation, phase).
    """

    id = models.CharField(max_length=16, primary_key=True)
    release = models.ForeignKey(Release, models.PROTECT, related_name="replicas")
    lane = models.CharField(max_length=63, default="", blank=True)
    wish = models.CharField(max_length=8, default="run")
    restart_asked = models.BooleanField(default=False)
    generation = models.PositiveIntegerField(default=0)
    phase = models.CharField(max_length=16, default="pending")
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)
    failure_kind = models.CharField(max_length=16, default="", blank=True)
    engine = models.CharField(max_length=8, default="unseen")
    routed = models.BooleanField(default=False)
    phase_entered_at = models.DateTimeField(default=timezone.now)
    node = models.ForeignKey(Node, models.PROTECT, null=True, related_name="replicas")
    device_uuids = models.JSONField(default=list)
    address = models.CharField(max_length=255, default="", blank=True)
    port = models.PositiveIntegerField(null=True)
    pid = models.PositiveIntegerField(null=True)
    pid_started_ticks = models.BigIntegerField(null=True)
    stage = models.CharField(max_length=128, default="", blank=True)
    progress_at = models.DateTimeField(null=True)
    budget_s = models.PositiveIntegerField(null=True)
    failed_starts = models.PositiveIntegerField(default=0)
    crashes_at = models.JSONField(default=list)
    next_retry_at = models.DateTimeField(null=True)
    unrouted_epoch = models.BigIntegerField(null=True)
    unrouted_version = models.BigIntegerField(null=True)
    drain_deadline_at = models.DateTimeField(null=True)
    stop_sent_at = models.DateTimeField(null=True)
    stop_forced = models.BooleanField(default=False)
    reserved_bytes = models.BigIntegerField(null=True)
    placement_reason = models.TextField(default="", blank=True)
    figures = models.JSONField(default=dict)
    load = models.JSONField(default=dict)
    load_measured_at = models.DateTimeField(null=True)
    max_model_len = models.PositiveIntegerField(null=True)
    log_tail = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    ready_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["created_at", "id"]
        indexes = [models.Index(fields=["phase"], name="replica_by_phase")]
        constraints = [
            models.CheckConstraint(condition=models.Q(phase__in=REPLICA_PHASES), name="replica_phase_known"),
            models.CheckConstraint(condition=models.Q(wish__in=["run", "stop"]), name="replica_wish_known"),
            models.CheckConstraint(
                condition=models.Q(phase__in=["pending", "stopped", "failed"]) | models.Q(node__isnull=False),
                name="replica_active_has_node",
            ),
        ]

    def __str__(self) -> str:
        return self.id


class PhaseChange(models.Model):
    """One move of a replica, for the page that shows the phases with their times."""

    replica = models.ForeignKey(Replica, models.CASCADE, related_name="changes")
    generation = models.PositiveIntegerField()
    phase = models.CharField(max_length=16)
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.replica_id}.{self.generation} {self.phase}"


class PortReservation(models.Model):
    """A port of a node that one generation of a replica holds."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="ports")
    port = models.PositiveIntegerField()
    replica = models.ForeignKey(Replica, models.CASCADE, related_name="ports")
    generation = models.PositiveIntegerField()
    purpose = models.CharField(max_length=16, default="http")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "port"], name="port_once_per_node"),
            models.CheckConstraint(condition=models.Q(port__gte=1024, port__lte=65535), name="port_in_range"),
        ]

    def __str__(self) -> str:
        return f"{self.node_id}:{self.port}"


class DeviceClaim(models.Model):
    """A device that a generation is loading on: one start at a time per device."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="claims")
    device_uuid = models.CharField(max_length=96)
    replica = models.ForeignKey(Replica, models.CASCADE, related_name="claims")
    generation = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "device_uuid"], name="one_start_per_device")]

    def __str__(self) -> str:
        return self.device_uuid


class Intent(models.Model):
    """Something that a node must do for one generation of a replica; done at most once; a profile, and golden
    prompts, once per wish."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="intents")
    replica = models.ForeignKey(Replica, models.CASCADE, related_name="intents")
    generation = models.PositiveIntegerField()
    action = models.CharField(max_length=8)
    phase = models.CharField(max_length=8, default="pending")
    parameters = models.JSONField(default=dict)
    claimed_by = models.UUIDField(null=True)
    claimed_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    done_at = models.DateTimeField(null=True)
    result = models.TextField(default="", blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            # Those may be wished again and again (one open at a time: StepProfile, GoldenRun).
            models.UniqueConstraint(
                fields=["replica", "generation", "action"],
                condition=models.Q(action__in=["start", "stop", "kill"]),
                name="intent_once_per_generation",
            ),
            models.CheckConstraint(
                condition=models.Q(action__in=["start", "stop", "kill", "profile", "golden"]),
                name="intent_action_known",
            ),
            models.CheckConstraint(
                condition=models.Q(phase__in=["pending", "claimed", "done", "failed", "void"]),
                name="intent_phase_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.replica_id}.{self.generation}"
