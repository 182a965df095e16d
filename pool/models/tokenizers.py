"""What gateways count tokens with: tokenizers and chat templates by the hash of their bytes."""

from __future__ import annotations

from django.db import models

from pool.domain.chat_template_file import LARGEST_FILE_BYTES
from pool.models.catalog import Version


class TokenizerFile(models.Model):
    """Immutable bytes under their SHA-256: `tokenizer` is a tokenizer.json as it came, `chat_template` a JSON
    object with the templates by name and the special tokens that they name."""

    digest = models.CharField(max_length=64, primary_key=True)
    kind = models.CharField(max_length=16)
    content = models.BinaryField()
    size_bytes = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=["tokenizer", "chat_template"]), name="tokenizer_file_kind_known"
            ),
            models.CheckConstraint(
                condition=models.Q(size_bytes__lte=LARGEST_FILE_BYTES), name="tokenizer_file_not_too_large"
            ),
            models.CheckConstraint(
                condition=models.Q(digest__regex=r"^[0-9a-f]{64}$"), name="tokenizer_file_digest_is_sha256"
            ),
        ]

    def __str__(self) -> str:
        return self.digest


class TokenizerUse(models.Model):
    """The files of a version, written once its files were read. An empty one has its reason in `problem`."""

    version = models.OneToOneField(Version, models.CASCADE, primary_key=True, related_name="tokenizer_use")
    tokenizer = models.ForeignKey(TokenizerFile, models.PROTECT, null=True, related_name="+")
    chat_template = models.ForeignKey(TokenizerFile, models.PROTECT, null=True, related_name="+")
    problem = models.CharField(max_length=63, default="", blank=True)

    def __str__(self) -> str:
        return f"tokenizer of {self.version_id}"
