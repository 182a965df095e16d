from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pool", "0013_golden_runs"),
    ]

    operations = [
        migrations.AddField(
            model_name="rollout",
            name="accept_outage",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="rollout",
            name="fit",
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name="rollout",
            name="swap",
            field=models.JSONField(default=dict),
        ),
    ]
