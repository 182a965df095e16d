from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pool", "0006_gateway_settings")]
    operations = [
        migrations.CreateModel(
            name="GatewaySnapshot",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("body", models.JSONField()),
            ],
            options={"ordering": ["id"]},
        ),
    ]
