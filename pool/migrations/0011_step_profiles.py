import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pool", "0010_captured_texts"),
    ]

    operations = [
        migrations.CreateModel(
            name="StepProfile",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("generation", models.PositiveIntegerField()),
                ("steps_asked", models.PositiveSmallIntegerField()),
                ("asked_by", models.CharField(max_length=150)),
                ("asked_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("phase", models.CharField(default="waiting", max_length=8)),
                ("reason_code", models.CharField(blank=True, default="", max_length=63)),
                ("reason_text", models.TextField(blank=True, default="")),
                ("started_at", models.DateTimeField(null=True)),
                ("done_at", models.DateTimeField(null=True)),
                ("figures", models.JSONField(null=True)),
                ("flame", models.JSONField(null=True)),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.RemoveConstraint(
            model_name="intent",
            name="intent_once_per_generation",
        ),
        migrations.RemoveConstraint(
            model_name="intent",
            name="intent_action_known",
        ),
        migrations.AddConstraint(
            model_name="intent",
            constraint=models.UniqueConstraint(
                condition=models.Q(("action__in", ["start", "stop", "kill"])),
                fields=("replica", "generation", "action"),
                name="intent_once_per_generation",
            ),
        ),
        migrations.AddConstraint(
            model_name="intent",
            constraint=models.CheckConstraint(
                condition=models.Q(("action__in", ["start", "stop", "kill", "profile"])),
                name="intent_action_known",
            ),
        ),
        migrations.AddField(
            model_name="stepprofile",
            name="intent",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="pool.intent"
            ),
        ),
        migrations.AddField(
            model_name="stepprofile",
            name="replica",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="step_profiles", to="pool.replica"
            ),
        ),
        migrations.AddConstraint(
            model_name="stepprofile",
            constraint=models.UniqueConstraint(
                condition=models.Q(("phase__in", ["waiting", "running"])),
                fields=("replica",),
                name="step_profile_one_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="stepprofile",
            constraint=models.CheckConstraint(
                condition=models.Q(("phase__in", ["waiting", "running", "done", "failed"])),
                name="step_profile_phase_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="stepprofile",
            constraint=models.CheckConstraint(
                condition=models.Q(("steps_asked__gte", 1), ("steps_asked__lte", 50)),
                name="step_profile_steps_in_range",
            ),
        ),
    ]
