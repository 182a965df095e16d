"""Stores what gateways count tokens with, once per version, and puts it into the routing table."""

from __future__ import annotations

import hashlib

from django.db import transaction

from pool.models import Release, TokenizerFile, TokenizerUse, Version
from pool.services.routing import rebuild_table
from pool.tokenizer_folder import TokenizerReading


def has_tokenizer_use(version: Version) -> bool:
    """Also when it was found that there is none."""
    return TokenizerUse.objects.filter(version=version).exists()


def store_tokenizer(version: Version, reading: TokenizerReading) -> bool:
    """False if another node was first. Versions with equal files share them."""
    with transaction.atomic():
        _, created = TokenizerUse.objects.get_or_create(
            version=version,
            defaults={
                "tokenizer": _store_file("tokenizer", reading.tokenizer),
                "chat_template": _store_file("chat_template", reading.chat_template),
                "problem": reading.problem,
            },
        )
        if created and Release.objects.filter(version=version).exists():
            rebuild_table()
    return created


def _store_file(kind: str, content: bytes | None) -> TokenizerFile | None:
    if content is None:
        return None
    digest = hashlib.sha256(content).hexdigest()
    file, _ = TokenizerFile.objects.get_or_create(
        digest=digest, defaults={"kind": kind, "content": content, "size_bytes": len(content)}
    )
    return file
