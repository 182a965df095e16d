"""Tokenizers and chat templates by hash, and the versions that have none."""

from __future__ import annotations

from pool.models import TokenizerFile, TokenizerUse


def find_tokenizer_file(digest: str) -> bytes | None:
    content = TokenizerFile.objects.filter(digest=digest).values_list("content", flat=True).first()
    return None if content is None else bytes(content)


def find_tokenizer_problem(model: str, version: str) -> str | None:
    """A code, "" if there is a tokenizer; None: nobody has read the version's files yet."""
    uses = TokenizerUse.objects.filter(version__model__name=model, version__name=version)
    return uses.values_list("problem", flat=True).first()
