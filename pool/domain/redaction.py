"""Masks keys and tokens in text that is kept or shown. Patterns cover the forms that Sluice itself makes."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"

_PATTERNS = (
    re.compile(r"sk-sluice-[A-Za-z0-9_\-]{8,}"),
    re.compile(r"slt_[A-Za-z0-9_\-]{8,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/\-]{16,}=*"),
    re.compile(r"(?i)(?<=api[_-]key[=:])\s*\S{8,}"),
    re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
)


def redact(text: str, *, secrets: Iterable[str] = ()) -> str:
    """`text` with known secrets and everything that looks like a key replaced by `***`."""
    for secret in secrets:
        if len(secret) >= 8:
            text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return text
