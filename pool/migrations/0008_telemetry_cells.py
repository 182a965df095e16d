from typing import Any

import django.db.models.deletion
from django.db import migrations, models


class CreatePartitioned(migrations.CreateModel):
    """A table without rows of its own: they lie in partitions by time, which telemetry makes and drops."""

    def database_forwards(self, app_label: Any, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        schema_editor.sql_create_table += " PARTITION BY RANGE (at)"
        try:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            del schema_editor.sql_create_table


class Migration(migrations.Migration):
    dependencies = [("pool", "0007_gateway_snapshots")]
    operations = [
        migrations.DeleteModel(
            name="TrafficCell",
        ),
        migrations.CreateModel(
            name="GaugeSubject",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=8)),
                ("name", models.CharField(max_length=96)),
                ("node", models.CharField(blank=True, default="", max_length=63)),
                ("model", models.CharField(blank=True, default="", max_length=63)),
                ("release", models.PositiveIntegerField(default=0)),
                ("lane", models.CharField(blank=True, default="", max_length=63)),
            ],
        ),
        migrations.CreateModel(
            name="KeyUsage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                ("key", models.CharField(max_length=64)),
                ("model", models.CharField(max_length=63)),
                ("requests", models.BigIntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("cached_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Series",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("model", models.CharField(max_length=63)),
                ("release", models.PositiveIntegerField(default=0)),
                ("replica", models.CharField(blank=True, default="", max_length=16)),
                ("lane", models.CharField(blank=True, default="", max_length=63)),
                ("tier", models.CharField(blank=True, default="", max_length=16)),
                ("label", models.CharField(blank=True, default="", max_length=63)),
                ("long_prompt", models.BooleanField(default=False)),
                ("region", models.CharField(blank=True, default="", max_length=63)),
            ],
        ),
        migrations.CreateModel(
            name="UsagePosition",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("run", models.CharField(max_length=96)),
                ("day", models.DateField()),
                ("key", models.CharField(max_length=64)),
                ("model", models.CharField(max_length=63)),
                ("totals", models.JSONField(default=dict)),
                ("updated_at", models.DateTimeField()),
            ],
        ),
        CreatePartitioned(
            name="FiveMinuteCell",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "series_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "series",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pool.series",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("requests", models.IntegerField(default=0)),
                ("errors", models.IntegerField(default=0)),
                ("interrupted", models.IntegerField(default=0)),
                ("late", models.IntegerField(default=0)),
                ("refused", models.IntegerField(default=0)),
                ("spilled", models.IntegerField(default=0)),
                ("retried", models.IntegerField(default=0)),
                ("degraded", models.IntegerField(default=0)),
                ("client_gone", models.IntegerField(default=0)),
                ("cached_answers", models.IntegerField(default=0)),
                ("empty", models.IntegerField(default=0)),
                ("repeated", models.IntegerField(default=0)),
                ("cut_by_length", models.IntegerField(default=0)),
                ("retransmits", models.IntegerField(default=0)),
                ("joined", models.IntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("cached_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("tokenize_s", models.FloatField(default=0)),
                ("queue_s", models.FloatField(default=0)),
                ("first_byte_s", models.FloatField(default=0)),
                ("decode_s", models.FloatField(default=0)),
                ("stream_s", models.FloatField(default=0)),
                ("e2e_s", models.FloatField(default=0)),
                ("engine_queue_s", models.FloatField(default=0)),
                ("engine_prefill_s", models.FloatField(default=0)),
                ("engine_decode_s", models.FloatField(default=0)),
                ("joined_e2e_s", models.FloatField(default=0)),
                ("outcomes", models.JSONField(default=dict)),
                ("queue", models.BinaryField(default=b"")),
                ("ttft", models.BinaryField(default=b"")),
                ("itl", models.BinaryField(default=b"")),
                ("e2e", models.BinaryField(default=b"")),
                ("per_token", models.BinaryField(default=b"")),
            ],
            options={
                "abstract": False,
            },
        ),
        CreatePartitioned(
            name="FiveMinuteGauge",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "subject_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "subject",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pool.gaugesubject",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("gauges", models.BinaryField(default=b"")),
                ("counters", models.BinaryField(default=b"")),
                ("prefill", models.BinaryField(default=b"")),
                ("decode", models.BinaryField(default=b"")),
                ("mixed", models.BinaryField(default=b"")),
                ("scheduler_queue", models.BinaryField(default=b"")),
            ],
            options={
                "abstract": False,
            },
        ),
        CreatePartitioned(
            name="RequestRecord",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "request_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("request_id", models.CharField(max_length=64)),
                ("at", models.DateTimeField()),
                ("tag", models.CharField(blank=True, default="", max_length=128)),
                ("model", models.CharField(max_length=63)),
                ("lane", models.CharField(blank=True, default="", max_length=63)),
                ("wished_release", models.PositiveIntegerField(null=True)),
                ("release", models.PositiveIntegerField(null=True)),
                ("replica", models.CharField(blank=True, default="", max_length=16)),
                ("node", models.CharField(blank=True, default="", max_length=63)),
                ("key", models.CharField(blank=True, default="", max_length=16)),
                ("tier", models.CharField(blank=True, default="", max_length=16)),
                ("label", models.CharField(blank=True, default="", max_length=63)),
                ("region", models.CharField(blank=True, default="", max_length=63)),
                ("status", models.PositiveSmallIntegerField(default=0)),
                ("outcome", models.CharField(blank=True, default="", max_length=63)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("tries", models.JSONField(default=list)),
                ("waits", models.JSONField(default=list)),
                ("spilled", models.BooleanField(default=False)),
                ("stream", models.BooleanField(default=False)),
                ("tokenize_s", models.FloatField(null=True)),
                ("queue_s", models.FloatField(null=True)),
                ("first_byte_s", models.FloatField(null=True)),
                ("decode_s", models.FloatField(null=True)),
                ("stream_s", models.FloatField(null=True)),
                ("ttft_s", models.FloatField(null=True)),
                ("e2e_s", models.FloatField(null=True)),
                ("longest_gap_s", models.FloatField(null=True)),
                ("engine_queue_s", models.FloatField(null=True)),
                ("engine_prefill_s", models.FloatField(null=True)),
                ("engine_decode_s", models.FloatField(null=True)),
                ("preemptions", models.PositiveIntegerField(null=True)),
                ("late_gaps", models.PositiveIntegerField(default=0)),
                ("chunks", models.PositiveIntegerField(default=0)),
                ("bytes_out", models.BigIntegerField(default=0)),
                ("prompt_tokens", models.PositiveIntegerField(null=True)),
                ("cached_tokens", models.PositiveIntegerField(null=True)),
                ("output_tokens", models.PositiveIntegerField(null=True)),
                ("estimated", models.BooleanField(default=False)),
                ("truncated_tokens", models.PositiveIntegerField(default=0)),
                ("retransmits", models.PositiveIntegerField(null=True)),
                ("finish_reason", models.CharField(blank=True, default="", max_length=16)),
                ("flags", models.JSONField(default=list)),
            ],
        ),
        CreatePartitioned(
            name="SecondCell",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "series_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "series",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pool.series",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("requests", models.IntegerField(default=0)),
                ("errors", models.IntegerField(default=0)),
                ("interrupted", models.IntegerField(default=0)),
                ("late", models.IntegerField(default=0)),
                ("refused", models.IntegerField(default=0)),
                ("spilled", models.IntegerField(default=0)),
                ("retried", models.IntegerField(default=0)),
                ("degraded", models.IntegerField(default=0)),
                ("client_gone", models.IntegerField(default=0)),
                ("cached_answers", models.IntegerField(default=0)),
                ("empty", models.IntegerField(default=0)),
                ("repeated", models.IntegerField(default=0)),
                ("cut_by_length", models.IntegerField(default=0)),
                ("retransmits", models.IntegerField(default=0)),
                ("joined", models.IntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("cached_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("tokenize_s", models.FloatField(default=0)),
                ("queue_s", models.FloatField(default=0)),
                ("first_byte_s", models.FloatField(default=0)),
                ("decode_s", models.FloatField(default=0)),
                ("stream_s", models.FloatField(default=0)),
                ("e2e_s", models.FloatField(default=0)),
                ("engine_queue_s", models.FloatField(default=0)),
                ("engine_prefill_s", models.FloatField(default=0)),
                ("engine_decode_s", models.FloatField(default=0)),
                ("joined_e2e_s", models.FloatField(default=0)),
                ("outcomes", models.JSONField(default=dict)),
                ("queue", models.BinaryField(default=b"")),
                ("ttft", models.BinaryField(default=b"")),
                ("itl", models.BinaryField(default=b"")),
                ("e2e", models.BinaryField(default=b"")),
                ("per_token", models.BinaryField(default=b"")),
            ],
            options={
                "abstract": False,
            },
        ),
        CreatePartitioned(
            name="SecondGauge",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "subject_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "subject",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pool.gaugesubject",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("gauges", models.BinaryField(default=b"")),
                ("counters", models.BinaryField(default=b"")),
                ("prefill", models.BinaryField(default=b"")),
                ("decode", models.BinaryField(default=b"")),
                ("mixed", models.BinaryField(default=b"")),
                ("scheduler_queue", models.BinaryField(default=b"")),
            ],
            options={
                "abstract": False,
            },
        ),
        CreatePartitioned(
            name="TenSecondCell",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "series_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "series",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pool.series",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("requests", models.IntegerField(default=0)),
                ("errors", models.IntegerField(default=0)),
                ("interrupted", models.IntegerField(default=0)),
                ("late", models.IntegerField(default=0)),
                ("refused", models.IntegerField(default=0)),
                ("spilled", models.IntegerField(default=0)),
                ("retried", models.IntegerField(default=0)),
                ("degraded", models.IntegerField(default=0)),
                ("client_gone", models.IntegerField(default=0)),
                ("cached_answers", models.IntegerField(default=0)),
                ("empty", models.IntegerField(default=0)),
                ("repeated", models.IntegerField(default=0)),
                ("cut_by_length", models.IntegerField(default=0)),
                ("retransmits", models.IntegerField(default=0)),
                ("joined", models.IntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("cached_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("tokenize_s", models.FloatField(default=0)),
                ("queue_s", models.FloatField(default=0)),
                ("first_byte_s", models.FloatField(default=0)),
                ("decode_s", models.FloatField(default=0)),
                ("stream_s", models.FloatField(default=0)),
                ("e2e_s", models.FloatField(default=0)),
                ("engine_queue_s", models.FloatField(default=0)),
                ("engine_prefill_s", models.FloatField(default=0)),
                ("engine_decode_s", models.FloatField(default=0)),
                ("joined_e2e_s", models.FloatField(default=0)),
                ("outcomes", models.JSONField(default=dict)),
                ("queue", models.BinaryField(default=b"")),
                ("ttft", models.BinaryField(default=b"")),
                ("itl", models.BinaryField(default=b"")),
                ("e2e", models.BinaryField(default=b"")),
                ("per_token", models.BinaryField(default=b"")),
            ],
            options={
                "abstract": False,
            },
        ),
        CreatePartitioned(
            name="TenSecondGauge",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "subject_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "subject",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="pool.gaugesubject",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("gauges", models.BinaryField(default=b"")),
                ("counters", models.BinaryField(default=b"")),
                ("prefill", models.BinaryField(default=b"")),
                ("decode", models.BinaryField(default=b"")),
                ("mixed", models.BinaryField(default=b"")),
                ("scheduler_queue", models.BinaryField(default=b"")),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.AddConstraint(
            model_name="gaugesubject",
            constraint=models.UniqueConstraint(
                fields=("kind", "name", "node", "model", "release", "lane"), name="one_gauge_subject"
            ),
        ),
        migrations.AddConstraint(
            model_name="keyusage",
            constraint=models.UniqueConstraint(
                fields=("day", "key", "model"), name="one_usage_per_key_and_day"
            ),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(fields=["model", "at"], name="request_by_model_and_time"),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(fields=["at"], name="request_by_time"),
        ),
        migrations.AddConstraint(
            model_name="series",
            constraint=models.UniqueConstraint(
                fields=("model", "region", "release", "replica", "lane", "tier", "label", "long_prompt"),
                name="one_series",
            ),
        ),
        migrations.AddConstraint(
            model_name="usageposition",
            constraint=models.UniqueConstraint(
                fields=("run", "day", "key", "model"), name="one_position_per_run"
            ),
        ),
    ]
