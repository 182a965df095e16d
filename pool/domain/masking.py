"""Masks what names or identifies people in texts that a caller's key has opted in to keep. Too much rather than too
little: keys, addresses, card and account numbers, telephone numbers and every other long row of digits.
"""

from __future__ import annotations

import re
from typing import Final

from pool.domain.redaction import redact

LONGEST: Final = 16_000
"""Characters of one text that are kept; of a longer one the first half and the last half of so many."""
CUT: Final = "\n[… cut …]\n"
# Read beyond a cut, so that nothing is shown of a number because its end was not seen.
_BEYOND: Final = 128
_PATTERNS: Final = (
    ("[e-mail]", re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")),
    ("[IBAN]", re.compile(r"\b[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?\b")),
    ("[number]", re.compile(r"\+?\(?\d(?:[ ().\u00a0/-]{0,3}\d){8,}")),
    ("[number]", re.compile(r"\d{6,}")),
)


def mask(text: str) -> str:
    """Of any length; the result is at most a little longer than LONGEST."""
    half = LONGEST // 2
    if len(text) <= LONGEST:
        return _mask(text)
    return _mask_start(text, half) + CUT + _mask_end(text, half)


def _mask(text: str) -> str:
    masked = redact(text)
    for words, pattern in _PATTERNS:
        masked = pattern.sub(words, masked)
    return masked


def _mask_start(text: str, length: int) -> str:
    """Up to the last white space before the cut."""
    start = _mask(text[: length + _BEYOND])[:length]
    return start[: _last_space(start)]


def _mask_end(text: str, length: int) -> str:
    end = _mask(text[-length - _BEYOND :])[-length:]
    space = re.search(r"\s", end)
    return end[space.end() :] if space is not None else ""


def _last_space(text: str) -> int:
    spaces = [found.start() for found in re.finditer(r"\s", text)]
    return spaces[-1] if spaces else 0
