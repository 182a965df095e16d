"""Masked texts of requests whose key has opted in."""

from __future__ import annotations

from django.db import models


class CapturedText(models.Model):
    """What one request said and got, masked, until `kept_until`."""

    request_id = models.CharField(max_length=64, primary_key=True)
    at = models.DateTimeField()
    model = models.CharField(max_length=63)
    key = models.CharField(max_length=16)
    """The first characters of its HMAC."""
    status = models.PositiveSmallIntegerField(default=0)
    outcome = models.CharField(max_length=63, default="", blank=True)
    input = models.JSONField(default=list)
    """`[[role, text]]`."""
    output = models.TextField(default="", blank=True)
    kept_until = models.DateTimeField(db_index=True)

    class Meta:
        indexes = [models.Index(fields=["key"], name="capture_by_key")]

    def __str__(self) -> str:
        return self.request_id
