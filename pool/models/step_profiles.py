"""Profiler runs of replicas and what they showed."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from pool.models.replicas import Intent, Replica


class StepProfile(models.Model):
    """One run over a few steps of one generation; the newest few of a replica are kept."""

    replica = models.ForeignKey(Replica, models.CASCADE, related_name="step_profiles")
    generation = models.PositiveIntegerField()
    intent = models.ForeignKey(Intent, models.SET_NULL, null=True, related_name="+")
    steps_asked = models.PositiveSmallIntegerField()
    asked_by = models.CharField(max_length=150)
    asked_at = models.DateTimeField(default=timezone.now)
    phase = models.CharField(max_length=8, default="waiting")
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)
    started_at = models.DateTimeField(null=True)
    done_at = models.DateTimeField(null=True)
    figures = models.JSONField(null=True)
    """`{on_device, steps: [...], kernels: [...]}`; null without a result."""
    flame = models.JSONField(null=True)
    """`{name, value (seconds), children}`, nested."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["replica"],
                condition=models.Q(phase__in=["waiting", "running"]),
                name="step_profile_one_open",
            ),
            models.CheckConstraint(
                condition=models.Q(phase__in=["waiting", "running", "done", "failed"]),
                name="step_profile_phase_known",
            ),
            models.CheckConstraint(
                condition=models.Q(steps_asked__gte=1, steps_asked__lte=50),
                name="step_profile_steps_in_range",
            ),
        ]

    def __str__(self) -> str:
        return f"profile {self.pk} of {self.replica_id}.{self.generation}"
