"""The engine key: taken out of the environment once, and masked in all that the process prints."""

from __future__ import annotations

import os
import sys
from typing import TextIO

KEY_VARIABLE = "SLUICE_ENGINE_KEY"
MASK = "***"

_taken: list[str] = []


def take_key() -> str | None:
    """The engine key, or None. The first call removes it from the environment of this process."""
    found = os.environ.pop(KEY_VARIABLE, "")
    if found and not _taken:
        _taken.append(found)
    return _taken[0] if _taken else None


def mask_output() -> None:
    """Masks the key in stdout and stderr of this process. Safe to call twice."""
    key = take_key()
    if not key:
        return
    for stream in (sys.stdout, sys.stderr):
        _mask_stream(stream, key)


def _mask_stream(stream: TextIO, key: str) -> None:
    if getattr(stream, "_sluice_masked", False):
        return
    write = stream.write

    def masked(text: str) -> int:
        return write(text.replace(key, MASK) if key in text else text)

    stream.write = masked  # type: ignore[method-assign]
    stream._sluice_masked = True  # type: ignore[attr-defined]
