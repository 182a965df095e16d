"""Cells of requests and of gauges at three resolutions, single request records, and how far the streams were read.

The cells and records are partitioned by time in PostgreSQL; `pool/telemetry/partitions.py` makes and drops partitions.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class Series(models.Model):
    """Whose requests a cell counts (`pool/domain/cells.py`). Never changed, so its id may be cached for ever."""

    model = models.CharField(max_length=63)
    release = models.PositiveIntegerField(default=0)
    replica = models.CharField(max_length=16, default="", blank=True)
    lane = models.CharField(max_length=63, default="", blank=True)
    tier = models.CharField(max_length=16, default="", blank=True)
    label = models.CharField(max_length=63, default="", blank=True)
    long_prompt = models.BooleanField(default=False)
    region = models.CharField(max_length=63, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["model", "region", "release", "replica", "lane", "tier", "label", "long_prompt"],
                name="one_series",
            )
        ]

    def __str__(self) -> str:
        return (
            f"{self.model}/{self.release}/{self.replica}/{self.lane}/{self.tier}/{self.label}/{self.region}"
        )


class TrafficCell(models.Model):
    """Counts of one series from `at` on. The fields are those of `pool/domain/cells.py`."""

    pk = models.CompositePrimaryKey("series_id", "at")
    series = models.ForeignKey(
        Series, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    at = models.DateTimeField()
    requests = models.IntegerField(default=0)
    errors = models.IntegerField(default=0)
    interrupted = models.IntegerField(default=0)
    late = models.IntegerField(default=0)
    refused = models.IntegerField(default=0)
    spilled = models.IntegerField(default=0)
    retried = models.IntegerField(default=0)
    degraded = models.IntegerField(default=0)
    client_gone = models.IntegerField(default=0)
    cached_answers = models.IntegerField(default=0)
    empty = models.IntegerField(default=0)
    repeated = models.IntegerField(default=0)
    cut_by_length = models.IntegerField(default=0)
    retransmits = models.IntegerField(default=0)
    joined = models.IntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    tokenize_s = models.FloatField(default=0)
    queue_s = models.FloatField(default=0)
    first_byte_s = models.FloatField(default=0)
    decode_s = models.FloatField(default=0)
    stream_s = models.FloatField(default=0)
    e2e_s = models.FloatField(default=0)
    engine_queue_s = models.FloatField(default=0)
    engine_prefill_s = models.FloatField(default=0)
    engine_decode_s = models.FloatField(default=0)
    joined_e2e_s = models.FloatField(default=0)
    outcomes = models.JSONField(default=dict)
    queue = models.BinaryField(default=b"")
    ttft = models.BinaryField(default=b"")
    itl = models.BinaryField(default=b"")
    e2e = models.BinaryField(default=b"")
    per_token = models.BinaryField(default=b"")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.series_id} {self.at}"


class SecondCell(TrafficCell):
    """Kept for two hours."""


class TenSecondCell(TrafficCell):
    """Kept for 30 days."""


class FiveMinuteCell(TrafficCell):
    """Kept for 13 months."""


class GaugeSubject(models.Model):
    """What gauges are of (`pool/domain/gauges.py`). Never changed, so its id may be cached for ever."""

    kind = models.CharField(max_length=8)
    name = models.CharField(max_length=96)
    node = models.CharField(max_length=63, default="", blank=True)
    model = models.CharField(max_length=63, default="", blank=True)
    release = models.PositiveIntegerField(default=0)
    lane = models.CharField(max_length=63, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "name", "node", "model", "release", "lane"], name="one_gauge_subject"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class GaugeRow(models.Model):
    """`gauges` and `counters` as `pack_gauges` and `pack_counters` write them, the others are histograms."""

    pk = models.CompositePrimaryKey("subject_id", "at")
    subject = models.ForeignKey(
        GaugeSubject, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    at = models.DateTimeField()
    gauges = models.BinaryField(default=b"")
    counters = models.BinaryField(default=b"")
    prefill = models.BinaryField(default=b"")
    decode = models.BinaryField(default=b"")
    mixed = models.BinaryField(default=b"")
    scheduler_queue = models.BinaryField(default=b"")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.subject_id} {self.at}"


class SecondGauge(GaugeRow):
    """Kept for two hours."""


class TenSecondGauge(GaugeRow):
    """Kept for 30 days."""


class FiveMinuteGauge(GaugeRow):
    """Kept for 13 months."""


class RequestRecord(models.Model):
    """One request, kept for 15 days, without a word of its text. None = not known. Lengths of time are in seconds."""

    pk = models.CompositePrimaryKey("request_id", "at")
    request_id = models.CharField(max_length=64)
    at = models.DateTimeField()
    """Its arrival."""
    tag = models.CharField(max_length=128, default="", blank=True)
    model = models.CharField(max_length=63)
    lane = models.CharField(max_length=63, default="", blank=True)
    wished_release = models.PositiveIntegerField(null=True)
    release = models.PositiveIntegerField(null=True)
    replica = models.CharField(max_length=16, default="", blank=True)
    node = models.CharField(max_length=63, default="", blank=True)
    key = models.CharField(max_length=16, default="", blank=True)
    """The first characters of its HMAC."""
    tier = models.CharField(max_length=16, default="", blank=True)
    label = models.CharField(max_length=63, default="", blank=True)
    region = models.CharField(max_length=63, default="", blank=True)
    status = models.PositiveSmallIntegerField(default=0)
    outcome = models.CharField(max_length=63, default="", blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    tries = models.JSONField(default=list)
    """Of each attempt: replica, when it was sent (seconds after arrival), what became of it."""
    waits = models.JSONField(default=list)
    """What stood in its way: `[[reason, seconds]]`."""
    spilled = models.BooleanField(default=False)
    stream = models.BooleanField(default=False)
    tokenize_s = models.FloatField(null=True)
    queue_s = models.FloatField(null=True)
    first_byte_s = models.FloatField(null=True)
    decode_s = models.FloatField(null=True)
    stream_s = models.FloatField(null=True)
    ttft_s = models.FloatField(null=True)
    e2e_s = models.FloatField(null=True)
    longest_gap_s = models.FloatField(null=True)
    engine_queue_s = models.FloatField(null=True)
    engine_prefill_s = models.FloatField(null=True)
    engine_decode_s = models.FloatField(null=True)
    preemptions = models.PositiveIntegerField(null=True)
    late_gaps = models.PositiveIntegerField(default=0)
    chunks = models.PositiveIntegerField(default=0)
    bytes_out = models.BigIntegerField(default=0)
    prompt_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    estimated = models.BooleanField(default=False)
    """Tokens are a guess: the engine did not count."""
    truncated_tokens = models.PositiveIntegerField(default=0)
    retransmits = models.PositiveIntegerField(null=True)
    finish_reason = models.CharField(max_length=16, default="", blank=True)
    flags = models.JSONField(default=list)
    """Of the answer: `empty`, `repeated`, `cut_by_length`."""
    session = models.BigIntegerField(null=True)
    """31 bits of the CRC-32 of the sticky key that the release was chosen by: requests of one session share it."""

    class Meta:
        indexes = [
            models.Index(fields=["model", "at"], name="request_by_model_and_time"),
            models.Index(fields=["at"], name="request_by_time"),
        ]

    def __str__(self) -> str:
        return self.request_id


class KeyUsage(models.Model):
    """What a key used of a model on a day (UTC). Exact: each gateway's totals are replayed until they are in here."""

    day = models.DateField()
    key = models.CharField(max_length=64)
    """HMAC of the key, as in the routing table."""
    model = models.CharField(max_length=63)
    requests = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["day", "key", "model"], name="one_usage_per_key_and_day")
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.key[:12]} {self.model}"


class UsagePosition(models.Model):
    """How much of one gateway run's totals for one key, model and day is in KeyUsage."""

    run = models.CharField(max_length=96)
    day = models.DateField()
    key = models.CharField(max_length=64)
    model = models.CharField(max_length=63)
    totals = models.JSONField(default=dict)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "day", "key", "model"], name="one_position_per_run")
        ]

    def __str__(self) -> str:
        return f"{self.run} {self.key[:12]}"


class StreamPosition(models.Model):
    """The last entry of a stream whose facts are in the cells: written in the same transaction as they are."""

    name = models.CharField(max_length=128, primary_key=True)
    last_id = models.CharField(max_length=64)
    dropped = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} {self.last_id}"


RESOLUTIONS: dict[int, tuple[type[Any], type[Any]]] = {
    1: (SecondCell, SecondGauge),
    10: (TenSecondCell, TenSecondGauge),
    300: (FiveMinuteCell, FiveMinuteGauge),
}
"""Seconds that a cell covers → tables of requests and of gauges."""
