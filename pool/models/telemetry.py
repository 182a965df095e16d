"""Cells of the gateways' request facts, and how far the stream of facts has been read."""

from __future__ import annotations

from django.db import models


class TrafficCell(models.Model):
    """Ten seconds of one series. Names, not foreign keys: a cell outlives what it counts."""

    at = models.DateTimeField()
    model = models.CharField(max_length=63)
    release = models.PositiveIntegerField()
    replica = models.CharField(max_length=16)
    lane = models.CharField(max_length=63)
    tier = models.CharField(max_length=16)
    requests = models.PositiveIntegerField(default=0)
    errors = models.PositiveIntegerField(default=0)
    interrupted = models.PositiveIntegerField(default=0)
    spilled = models.PositiveIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    ttft = models.BinaryField()
    e2e = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["at", "model", "release", "replica", "lane", "tier"], name="one_cell_per_series"
            )
        ]
        indexes = [models.Index(fields=["model", "at"], name="cell_by_model_and_time")]

    def __str__(self) -> str:
        return f"{self.model}/{self.release}/{self.replica} {self.at}"


class StreamPosition(models.Model):
    """The last entry of a stream whose facts are in the cells: written in the same transaction as they are."""

    name = models.CharField(max_length=128, primary_key=True)
    last_id = models.CharField(max_length=64)
    dropped = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} {self.last_id}"
