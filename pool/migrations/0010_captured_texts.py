from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pool", "0009_slo_alerts"),
    ]

    operations = [
        migrations.CreateModel(
            name="CapturedText",
            fields=[
                ("request_id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("model", models.CharField(max_length=63)),
                ("key", models.CharField(max_length=16)),
                ("status", models.PositiveSmallIntegerField(default=0)),
                ("outcome", models.CharField(blank=True, default="", max_length=63)),
                ("input", models.JSONField(default=list)),
                ("output", models.TextField(blank=True, default="")),
                ("kept_until", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.AddField(
            model_name="key",
            name="capture_ratio",
            field=models.FloatField(default=0.0),
        ),
        migrations.AddConstraint(
            model_name="key",
            constraint=models.CheckConstraint(
                condition=models.Q(("capture_ratio__gte", 0), ("capture_ratio__lte", 1)),
                name="key_capture_is_a_share",
            ),
        ),
        migrations.AddIndex(
            model_name="capturedtext",
            index=models.Index(fields=["key"], name="capture_by_key"),
        ),
    ]
