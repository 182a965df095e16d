from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pool", "0014_rollout_room"),
    ]

    operations = [
        migrations.AddField(
            model_name="plan",
            name="rollout_base",
            field=models.PositiveIntegerField(null=True),
        ),
    ]
