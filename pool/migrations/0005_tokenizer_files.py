from django.db import migrations, models
from django.db.models import deletion


class Migration(migrations.Migration):
    dependencies = [("pool", "0004_rules_survive_a_restore")]
    operations = [
        migrations.CreateModel(
            name="TokenizerFile",
            fields=[
                ("digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=16)),
                ("content", models.BinaryField()),
                ("size_bytes", models.PositiveIntegerField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["tokenizer", "chat_template"])),
                        name="tokenizer_file_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("size_bytes__lte", 33554432)), name="tokenizer_file_not_too_large"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("digest__regex", "^[0-9a-f]{64}$")),
                        name="tokenizer_file_digest_is_sha256",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TokenizerUse",
            fields=[
                (
                    "version",
                    models.OneToOneField(
                        on_delete=deletion.CASCADE,
                        primary_key=True,
                        related_name="tokenizer_use",
                        serialize=False,
                        to="pool.version",
                    ),
                ),
                ("problem", models.CharField(blank=True, default="", max_length=63)),
                (
                    "chat_template",
                    models.ForeignKey(
                        null=True, on_delete=deletion.PROTECT, related_name="+", to="pool.tokenizerfile"
                    ),
                ),
                (
                    "tokenizer",
                    models.ForeignKey(
                        null=True, on_delete=deletion.PROTECT, related_name="+", to="pool.tokenizerfile"
                    ),
                ),
            ],
        ),
    ]
