"""Cuts the middle out of a prompt that is too long: whole turns, or paragraphs of one text."""

from collections.abc import Callable
from typing import Any


def truncate(
    fields: dict[str, Any], *, path: bytes, how: str, excess_tokens: int, count: Callable[[str], int]
) -> int | None:
    """The tokens that were cut, at least `excess_tokens`; None = it cannot be done, and nothing was changed.

    `how`: "message" or "paragraph". `count`: tokens of a text, a fair estimate is enough.
    """
    return None
