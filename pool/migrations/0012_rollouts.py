import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import pool.models.base


class Migration(migrations.Migration):
    dependencies = [
        ("pool", "0011_step_profiles"),
    ]

    operations = [
        migrations.AddField(
            model_name="requestrecord",
            name="session",
            field=models.BigIntegerField(null=True),
        ),
        migrations.CreateModel(
            name="Rollout",
            fields=[
                ("id", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("base_plan", models.PositiveIntegerField()),
                ("phase", models.CharField(default="planned", max_length=16)),
                ("resumes", models.CharField(blank=True, default="", max_length=16)),
                ("step", models.SmallIntegerField(default=-1)),
                ("steps", models.JSONField()),
                ("gates", models.JSONField(default=dict)),
                ("hold_s", models.PositiveIntegerField(default=1800)),
                ("scales", models.JSONField(default=list)),
                ("scales_before", models.JSONField(default=list)),
                ("promote_asked", models.BooleanField(default=False)),
                ("entered_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("deadline_at", models.DateTimeField(null=True)),
                ("next_action", models.TextField(blank=True, default="")),
                ("reason_code", models.CharField(blank=True, default="", max_length=63)),
                ("reason_text", models.TextField(blank=True, default="")),
                ("weighted_at", models.DateTimeField(null=True)),
                ("plan", models.PositiveIntegerField(null=True)),
                ("rollback_plan", models.PositiveIntegerField(null=True)),
                ("table_epoch", models.BigIntegerField(null=True)),
                ("table_version", models.BigIntegerField(null=True)),
                ("streams", models.JSONField(default=dict)),
                ("golden", models.JSONField(default=dict)),
                ("verdict", models.JSONField(default=dict)),
                ("verdict_at", models.DateTimeField(null=True)),
                ("evidence", models.JSONField(default=dict)),
                ("created_by", models.CharField(blank=True, default="", max_length=150)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "candidate",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="rollouts",
                        to="pool.release",
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="rollouts", to="pool.model"
                    ),
                ),
                (
                    "stable",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pool.release"
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="GateReading",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("gate", models.CharField(max_length=63)),
                ("at", models.DateTimeField()),
                ("outcome", models.CharField(max_length=16)),
                ("worse_log", models.FloatField(default=0.0)),
                ("not_worse_log", models.FloatField(default=0.0)),
                ("figures", models.JSONField(default=dict)),
                (
                    "rollout",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="readings",
                        to="pool.rollout",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="RolloutEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("kind", models.CharField(max_length=16)),
                ("code", models.CharField(blank=True, default="", max_length=63)),
                ("text", models.TextField()),
                ("facts", models.JSONField(default=dict)),
                ("actor", models.CharField(blank=True, default="", max_length=150)),
                (
                    "rollout",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="events", to="pool.rollout"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="GoldenPrompt",
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
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$",
                                "Use 1 to 63 lower-case letters, digits, '.', '_' or '-', beginning and ending with a letter or digit.",
                            )
                        ],
                    ),
                ),
                ("messages", models.JSONField()),
                ("max_tokens", models.PositiveIntegerField(default=32)),
                ("match", models.CharField(default="exact", max_length=8)),
                ("expected", models.TextField(blank=True, default="")),
                ("tolerance", models.FloatField(default=0.0)),
                ("required", models.BooleanField(default=True)),
                ("created_by", models.CharField(blank=True, default="", max_length=150)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="golden_prompts",
                        to="pool.model",
                    ),
                ),
            ],
            options={
                "ordering": ["model_id", "name"],
                "constraints": [
                    models.UniqueConstraint(fields=("model", "name"), name="golden_prompt_once_per_model"),
                    models.CheckConstraint(
                        condition=models.Q(("name__regex", "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")),
                        name="golden_prompt_name_pattern",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("match__in", ["exact", "contains", "regex", "logprob"])),
                        name="golden_match_known",
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.UniqueConstraint(
                condition=models.Q(("phase__in", ["promoted", "rolled_back", "failed"]), _negated=True),
                fields=("model",),
                name="one_active_rollout_per_model",
            ),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "phase__in",
                        [
                            "planned",
                            "preparing",
                            "warming",
                            "stepping",
                            "holding",
                            "promoted",
                            "rolling_back",
                            "rolled_back",
                            "paused",
                            "failed",
                        ],
                    )
                ),
                name="rollout_phase_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.CheckConstraint(
                condition=models.Q(("candidate", models.F("stable")), _negated=True),
                name="rollout_of_two_releases",
            ),
        ),
        migrations.AddIndex(
            model_name="gatereading",
            index=models.Index(fields=["rollout", "gate", "at"], name="reading_by_gate_and_time"),
        ),
    ]
