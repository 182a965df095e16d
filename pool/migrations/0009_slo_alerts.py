import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import pool.models.base


class Migration(migrations.Migration):
    dependencies = [
        ("pool", "0008_telemetry_cells"),
    ]

    operations = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("source", models.CharField(max_length=12)),
                ("rule", models.CharField(max_length=63)),
                ("subject", models.CharField(max_length=200)),
                ("model", models.CharField(blank=True, default="", max_length=63)),
                ("lane", models.CharField(blank=True, default="", max_length=63)),
                ("level", models.CharField(max_length=8)),
                ("peak", models.CharField(max_length=8)),
                ("opened_at", models.DateTimeField()),
                ("level_since", models.DateTimeField()),
                ("closed_at", models.DateTimeField(null=True)),
                ("close_reason", models.CharField(blank=True, default="", max_length=32)),
                ("evidence", models.JSONField(default=dict)),
                ("data_state", models.CharField(default="measured", max_length=12)),
                ("seen_at", models.DateTimeField()),
                ("acknowledged_at", models.DateTimeField(null=True)),
                ("acknowledged_by", models.CharField(blank=True, default="", max_length=150)),
                ("held_until", models.DateTimeField(null=True)),
                ("held_by", models.CharField(blank=True, default="", max_length=150)),
            ],
            options={
                "ordering": ["-opened_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="RuleChange",
            fields=[
                ("rule", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("settings", models.JSONField(default=dict)),
                ("changed_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("changed_by", models.CharField(blank=True, default="", max_length=150)),
            ],
        ),
        migrations.CreateModel(
            name="AlertEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("kind", models.CharField(max_length=16)),
                ("level", models.CharField(blank=True, default="", max_length=8)),
                ("by", models.CharField(blank=True, default="", max_length=150)),
                ("details", models.JSONField(default=dict)),
                (
                    "alert",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="events", to="pool.alert"
                    ),
                ),
            ],
            options={
                "ordering": ["alert_id", "at", "id"],
            },
        ),
        migrations.CreateModel(
            name="AlertWatch",
            fields=[
                ("key", models.CharField(max_length=300, primary_key=True, serialize=False)),
                ("state", models.JSONField()),
                ("changed_at", models.DateTimeField()),
                (
                    "alert",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="pool.alert",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Slo",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("lane", models.CharField(blank=True, default="", max_length=63)),
                ("tier", models.CharField(blank=True, default="", max_length=16)),
                ("label", models.CharField(blank=True, default="", max_length=63)),
                ("template", models.CharField(blank=True, default="", max_length=63)),
                ("phase", models.CharField(default="active", max_length=12)),
                ("settings", models.JSONField(default=dict)),
                ("figures", models.JSONField(blank=True, default=dict)),
                ("report", models.JSONField(blank=True, default=dict)),
                ("counted_until", models.DateTimeField(null=True)),
                ("held_until", models.DateTimeField(null=True)),
                ("held_by", models.CharField(blank=True, default="", max_length=150)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("created_by", models.CharField(blank=True, default="", max_length=150)),
                ("changed_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="slos", to="pool.model"
                    ),
                ),
            ],
            options={
                "ordering": ["model_id", "lane", "tier", "label"],
            },
        ),
        migrations.AddField(
            model_name="alert",
            name="slo",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="alerts", to="pool.slo"
            ),
        ),
        migrations.CreateModel(
            name="SloSpan",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("requests", models.IntegerField(default=0)),
                ("streams", models.IntegerField(default=0)),
                ("ttft_p50", models.IntegerField(default=0)),
                ("ttft_p95", models.IntegerField(default=0)),
                ("ttft_p99", models.IntegerField(default=0)),
                ("errors", models.IntegerField(default=0)),
                ("degraded", models.IntegerField(default=0)),
                ("interrupted", models.IntegerField(default=0)),
                (
                    "slo",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="spans", to="pool.slo"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Webhook",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    pool.models.base.NameField(
                        max_length=63,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$",
                                "Use 1 to 63 lower-case letters, digits, '.', '_' or '-', beginning and ending with a letter or digit.",
                            )
                        ],
                    ),
                ),
                ("url", models.CharField(max_length=500)),
                ("least_level", models.CharField(default="yellow", max_length=8)),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("created_by", models.CharField(blank=True, default="", max_length=150)),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name__regex", "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")),
                        name="webhook_name_pattern",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Notice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("body", models.JSONField()),
                ("created_at", models.DateTimeField()),
                ("due_at", models.DateTimeField(null=True)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("sent_at", models.DateTimeField(null=True)),
                ("problem", models.CharField(blank=True, default="", max_length=64)),
                (
                    "alert",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notices",
                        to="pool.alert",
                    ),
                ),
                (
                    "webhook",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="notices", to="pool.webhook"
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="Restriction",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("lane", models.CharField(blank=True, default="", max_length=63)),
                ("kind", models.CharField(max_length=24)),
                ("value", models.FloatField(default=0)),
                ("until", models.DateTimeField()),
                ("reason", models.CharField(blank=True, default="", max_length=300)),
                ("dry_run", models.BooleanField(default=False)),
                ("made_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("ended_at", models.DateTimeField(null=True)),
                ("ended_by", models.CharField(blank=True, default="", max_length=150)),
                ("end_reason", models.CharField(blank=True, default="", max_length=16)),
                (
                    "alert",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="restrictions",
                        to="pool.alert",
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="restrictions",
                        to="pool.model",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("model", "lane", "kind", "dry_run"),
                        name="one_restriction_of_a_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kind__in", ["shed_batch", "close_lane", "no_long", "admission_ratio"])
                        ),
                        name="restriction_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("kind", "admission_ratio"), _negated=True),
                            models.Q(("value__gt", 0), ("value__lt", 1)),
                            _connector="OR",
                        ),
                        name="restriction_ratio_is_one",
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="slo",
            constraint=models.UniqueConstraint(
                fields=("model", "lane", "tier", "label"), name="one_slo_per_scope"
            ),
        ),
        migrations.AddConstraint(
            model_name="slo",
            constraint=models.CheckConstraint(
                condition=models.Q(("phase__in", ["proposed", "active", "dismissed"])), name="slo_phase_known"
            ),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["closed_at"], name="alert_by_end"),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at", None)),
                fields=("source", "rule", "subject"),
                name="one_open_alert",
            ),
        ),
        migrations.AddConstraint(
            model_name="slospan",
            constraint=models.UniqueConstraint(fields=("slo", "at"), name="one_span_per_slo_and_time"),
        ),
        migrations.AddIndex(
            model_name="notice",
            index=models.Index(
                condition=models.Q(("due_at__isnull", False)), fields=["due_at"], name="notice_by_due"
            ),
        ),
    ]
