"""Nodes of the pool, their devices and engine environments."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from pool.models.base import NameField, name_constraint


class Node(models.Model):
    """A host that joined by running one worker. Its phase is moved only by `services.nodes`."""

    name = NameField(unique=True)
    zone = models.CharField(max_length=63, default="", blank=True)
    labels = models.JSONField(default=dict, blank=True)
    address = models.CharField(max_length=255, default="127.0.0.1")
    host = models.CharField(max_length=255, default="", blank=True)
    facts = models.JSONField(default=dict, blank=True)
    wish = models.CharField(max_length=8, default="serve")
    phase = models.CharField(max_length=16, default="ready")
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)
    phase_entered_at = models.DateTimeField(default=timezone.now)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [
            name_constraint("node"),
            models.CheckConstraint(
                condition=models.Q(phase__in=["ready", "cordoned", "draining", "unreachable", "replaced"]),
                name="node_phase_known",
            ),
            models.CheckConstraint(
                condition=models.Q(wish__in=["serve", "cordon", "drain"]), name="node_wish_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class NodeLease(models.Model):
    """The worker's sign of life; apart from Node, so that a beat wakes no loop."""

    node = models.OneToOneField(Node, models.CASCADE, primary_key=True, related_name="lease")
    holder = models.UUIDField()
    renewed_at = models.DateTimeField()
    until = models.DateTimeField()
    probe_sent_at = models.DateTimeField(null=True)
    probe_seen_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"lease of {self.node_id}"


class Device(models.Model):
    """A GPU by its UUID, or the one `cpu` device of a node without any."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="devices")
    index = models.PositiveIntegerField()
    uuid = models.CharField(max_length=96)
    kind = models.CharField(max_length=8)
    name = models.CharField(max_length=128)
    compute_capability = models.CharField(max_length=8, default="", blank=True)
    link_group = models.CharField(max_length=32, default="", blank=True)
    usable = models.BooleanField(default=True)
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)

    class Meta:
        ordering = ["node_id", "index"]
        constraints = [
            models.UniqueConstraint(fields=["node", "uuid"], name="device_uuid_once_per_node"),
            models.CheckConstraint(condition=models.Q(kind__in=["cpu", "cuda"]), name="device_kind_known"),
        ]

    def __str__(self) -> str:
        return self.uuid


class DeviceMemory(models.Model):
    """The newest measurement of a device's memory by owner, in bytes; its age is `measured_at`."""

    device = models.OneToOneField(Device, models.CASCADE, primary_key=True, related_name="memory")
    total_bytes = models.BigIntegerField()
    free_bytes = models.BigIntegerField()
    ours_bytes = models.BigIntegerField()
    foreign_bytes = models.BigIntegerField()
    processes = models.JSONField(default=list)
    measured_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"memory of {self.device_id}"


class Runtime(models.Model):
    """One installed engine environment on a node, as its probe found it."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="runtimes")
    name = NameField()
    kind = models.CharField(max_length=8)
    version = models.CharField(max_length=64, default="", blank=True)
    interpreter = models.CharField(max_length=512)
    quantizations = models.JSONField(default=list)
    kv_cache_dtypes = models.JSONField(default=list)
    block_sizes = models.JSONField(default=list)
    facts = models.JSONField(default=dict)
    usable = models.BooleanField(default=True)
    reason_text = models.TextField(default="", blank=True)
    probed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["node_id", "name"]
        constraints = [
            models.UniqueConstraint(fields=["node", "name"], name="runtime_name_once_per_node"),
            models.CheckConstraint(condition=models.Q(kind__in=["vllm", "sim"]), name="runtime_kind_known"),
        ]

    def __str__(self) -> str:
        return self.name
