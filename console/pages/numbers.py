"""Numbers that somebody typed: whole, short enough to be meant, or None."""

from __future__ import annotations

LONGEST_DIGITS = 9


def read_whole(text: str) -> int | None:
    """None for anything but 1 to 9 decimal digits: Python refuses to parse thousands of them with an error."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= LONGEST_DIGITS else None
