"""What can be served: models with lanes, immutable versions, profiles and releases."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from pool.models.base import NameField, name_constraint
from pool.models.nodes import Node


class Model(models.Model):
    """A name that clients ask for. `gateway` holds the ModelSettings that differ from their defaults."""

    name = NameField(unique=True)
    owner = models.CharField(max_length=128, default="", blank=True)
    description = models.TextField(default="", blank=True)
    gateway = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [name_constraint("model")]

    def __str__(self) -> str:
        return self.name


class Lane(models.Model):
    """A class of requests by prompt length; `max_prompt_tokens` None means up to the context.

    `settings` holds the other LaneSettings that differ from their defaults.
    """

    model = models.ForeignKey(Model, models.CASCADE, related_name="lanes")
    name = NameField()
    position = models.PositiveIntegerField()
    max_prompt_tokens = models.PositiveIntegerField(null=True)
    concurrency = models.PositiveIntegerField()
    ttft_target_ms = models.PositiveIntegerField()
    settings = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["model_id", "position"]
        constraints = [
            models.UniqueConstraint(fields=["model", "name"], name="lane_name_once_per_model"),
            models.UniqueConstraint(fields=["model", "position"], name="lane_position_once_per_model"),
        ]

    def __str__(self) -> str:
        return self.name


class Version(models.Model):
    """Immutable weights of a model. `manifest` and `facts` are written once, by whoever reads them first."""

    model = models.ForeignKey(Model, models.PROTECT, related_name="versions")
    name = NameField()
    source = models.CharField(max_length=512)
    revision = models.CharField(max_length=128, default="", blank=True)
    manifest = models.JSONField(null=True)
    facts = models.JSONField(null=True)
    remote_code_approved = models.BooleanField(default=False)
    retired_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model_id", "id"]
        constraints = [
            models.UniqueConstraint(fields=["model", "name"], name="version_name_once_per_model"),
            name_constraint("version"),
        ]

    def __str__(self) -> str:
        return self.name


class VersionPresence(models.Model):
    """Whether a node holds a version's files: wanted, verifying, present, absent or broken."""

    version = models.ForeignKey(Version, models.CASCADE, related_name="presences")
    node = models.ForeignKey(Node, models.CASCADE, related_name="presences")
    phase = models.CharField(max_length=16, default="wanted")
    path = models.CharField(max_length=1024, default="", blank=True)
    stamps = models.JSONField(default=dict)
    reason_code = models.CharField(max_length=63, default="", blank=True)
    reason_text = models.TextField(default="", blank=True)
    full_check_wanted = models.BooleanField(default=False)
    verified_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["version", "node"], name="presence_once_per_node"),
            models.CheckConstraint(
                condition=models.Q(phase__in=["wanted", "verifying", "present", "absent", "broken"]),
                name="presence_phase_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.version_id} on {self.node_id}"


class Profile(models.Model):
    """Immutable engine settings under a name."""

    name = NameField(unique=True)
    settings = models.JSONField()
    digest = models.CharField(max_length=64)
    comment = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [name_constraint("profile")]

    def __str__(self) -> str:
        return self.name


class Release(models.Model):
    """Version + one profile per lane + runtime, numbered per model: the thing that is rolled out."""

    model = models.ForeignKey(Model, models.PROTECT, related_name="releases")
    number = models.PositiveIntegerField()
    version = models.ForeignKey(Version, models.PROTECT, related_name="releases")
    runtime = NameField()
    comment = models.TextField(default="", blank=True)
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["model", "number"], name="release_number_once_per_model"),
            models.CheckConstraint(condition=models.Q(number__gte=1), name="release_number_positive"),
        ]

    def __str__(self) -> str:
        return f"release {self.number}"


class ReleaseProfile(models.Model):
    """The profile of a release for one lane; the empty lane stands for all lanes."""

    release = models.ForeignKey(Release, models.CASCADE, related_name="profiles")
    lane = models.CharField(max_length=63, default="", blank=True)
    profile = models.ForeignKey(Profile, models.PROTECT, related_name="uses")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["release", "lane"], name="one_profile_per_lane")]

    def __str__(self) -> str:
        return f"{self.release_id}/{self.lane or 'all'}"


class Scale(models.Model):
    """The wish: how many replicas a release has in a lane (empty: for all lanes)."""

    release = models.ForeignKey(Release, models.CASCADE, related_name="scales")
    lane = models.CharField(max_length=63, default="", blank=True)
    replicas = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["release", "lane"], name="one_scale_per_lane")]

    def __str__(self) -> str:
        return f"{self.release_id}/{self.lane or 'all'}: {self.replicas}"
