"""Whether an answer ended in a loop: the same piece of text again and again, up to its end. Pure, on the tail only."""

from typing import Final

LEAST_TURNS: Final = 3
"""So often the piece must stand there: twice is emphasis or a refrain."""
LEAST_SPAN: Final = 160
"""Characters that the turns must fill, or the whole tail where that is shorter: a rule line of 80 to 120 dashes, the
head of a table and `ha ha ha` are usual text."""
MOST_LOOKED_AT: Final = 2048
_LEAST_TAIL: Final = 24
_ANCHOR: Final = 8
_MOST_PERIODS: Final = 16


def repeats_itself(text: str) -> bool:
    """`text`: the end of an answer, as much as is at hand. A tail below 24 characters never counts.

    The last characters are looked for further to the front: each place where they stand is a period that may hold.
    """
    tail = text[-MOST_LOOKED_AT:].rstrip()
    length = len(tail)
    if length < _LEAST_TAIL:
        return False
    span = min(LEAST_SPAN, length)
    anchor = tail[-_ANCHOR:]
    start = length - _ANCHOR
    end = length - 1
    for _ in range(_MOST_PERIODS):
        found = tail.rfind(anchor, 0, end)
        if found < 0:
            return False
        period = start - found
        reach = max(span, LEAST_TURNS * period)
        if reach > length:
            return False
        if tail[length - reach : length - period] == tail[length - reach + period :]:
            return True
        end = found + _ANCHOR - 1
    return False
