"""How many tokens a text has, guessed from its characters, and when a guess is too near to an edge to be trusted.

Each class of characters has a weight in tokens per character. Long texts are sampled, so that a guess costs the same
few microseconds for every length.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from pool.domain import token_probes

Weights = tuple[float, ...]
"""Tokens per character of: ASCII letters, symbols, digits, Latin letters with accents, other scripts of two bytes in
UTF-8 (Cyrillic, Greek, Arabic, Hebrew), Indic and Thai, Chinese and Japanese, Korean, the rest (emoji)."""

GENERIC: Weights = (0.279, 0.63, 0.79, 1.6, 0.49, 0.75, 0.87, 0.86, 2.5)
"""Least squares over seven public tokenizers of 33 kinds of text: see docs/gateway.md."""

ERROR_RATIO = 0.30
"""Within this part of the true count lie 95 of 100 guesses of English, code and JSON with the tokenizer's weights."""
WIDE_ERROR_RATIO = 0.60
"""The same of other scripts: a tokenizer knows Russian words and spells out Ukrainian ones."""

_SLICE_CHARS = 256
_SHORT_CHARS = 1024
_LONG_CHARS = 65_536
_SLICES, _MANY_SLICES = 4, 24
# Runs of letters without a break between them are no words (base64, keys): fewer of them are in a vocabulary.
_LONGEST_WORD = 24
_RUN_FACTOR = 2.4

_LETTERS = string.ascii_letters.encode()
_DIGITS = string.digits.encode()
_WHITE = b" \t\r\n"
_HIGH = bytes(range(0x80, 0x100))
# In UTF-8 the first byte of a character tells its script well enough.
_NOT_FIRST = bytes(range(0xC2))
_FIRST_BYTES = (
    bytes((*range(0xC2, 0xCA), 0xE1, 0xE2)),  # E1: Vietnamese, E2: typographic marks
    bytes(range(0xCA, 0xE0)),
    b"\xe0",
    bytes(range(0xE3, 0xEA)),
    bytes(range(0xEA, 0xF0)),
)


def estimate_tokens(text: str, weights: Weights = GENERIC) -> int:
    """At least 1 for a text that is not empty."""
    length = len(text)
    if not length:
        return 0
    if length <= _SHORT_CHARS:
        return int(_weigh(text, weights)) + 1
    sample = _sample(text, length)
    return int(_weigh(sample, weights) * length / len(sample)) + 1


def _sample(text: str, length: int) -> str:
    count = _SLICES if length <= _LONG_CHARS else _MANY_SLICES
    step = (length - _SLICE_CHARS) // (count - 1)
    return "".join([text[at : at + _SLICE_CHARS] for at in range(0, step * count, step)])


def _weigh(text: str, weights: Weights) -> float:
    ascii_only = text.isascii()
    # A lone surrogate is no valid text, but must not end a request here.
    content = text.encode() if ascii_only else text.encode("utf-8", "replace")
    tokens = 0.0
    if not ascii_only:
        tokens = _weigh_scripts(content, weights)
        content = content.translate(None, _HIGH)
    others = content.translate(None, _LETTERS)
    letters = len(content) - len(others)
    marks = others.translate(None, _WHITE)
    symbols = len(marks.translate(None, _DIGITS))
    per_letter = weights[0]
    if letters > _LONGEST_WORD * (len(others) - len(marks) + symbols + 1):
        per_letter *= _RUN_FACTOR
    return tokens + letters * per_letter + symbols * weights[1] + (len(marks) - symbols) * weights[2]


def _weigh_scripts(content: bytes, weights: Weights) -> float:
    tokens = 0.0
    firsts = content.translate(None, _NOT_FIRST)
    for number, bytes_of_class in enumerate(_FIRST_BYTES, start=3):
        rest = firsts.translate(None, bytes_of_class)
        tokens += (len(firsts) - len(rest)) * weights[number]
        firsts = rest
    return tokens + len(firsts) * weights[8]


def measure_weights(count: Callable[[str], int]) -> Weights:
    """Weights of the tokenizer whose exact counts `count` gives; some 3,000 characters are counted."""
    letters = _rate(count, token_probes.PROSE, (0.0,) * 9, 0)
    digits = _rate(count, token_probes.DIGITS, (letters,) + (0.0,) * 8, 2)
    known: Weights = (letters, 0.0, digits) + (0.0,) * 6
    known = _with(known, 1, _rate(count, token_probes.CODE, known, 1))
    for number, texts in enumerate(
        (
            token_probes.LATIN,
            token_probes.TWO_BYTE,
            token_probes.THREE_BYTE,
            token_probes.CJK,
            token_probes.HANGUL,
            token_probes.FOUR_BYTE,
        ),
        start=3,
    ):
        known = _with(known, number, _rate(count, texts, known, number))
    return known


def _rate(count: Callable[[str], int], texts: Sequence[str], known: Weights, number: int) -> float:
    """Tokens per character of one class, the weights of the others being known."""
    one = _with((0.0,) * 9, number, 1.0)
    rates = []
    for text in texts:
        left = count(text) - _weigh(text, known)
        rates.append(left / max(1.0, _weigh(text, one)))
    return max(0.05, sum(rates) / len(rates))


def _with(weights: Weights, number: int, value: float) -> Weights:
    return (*weights[:number], value, *weights[number + 1 :])


def needs_count(
    estimate: int, *, edges: Sequence[int | None], hard_limit: int | None, error_ratio: float = ERROR_RATIO
) -> bool:
    """Whether an edge of a lane, or the longest prompt that a replica takes, lies within the guess's error.

    `edges` None: no edge, as of the last lane.
    """
    low, high = estimate / (1 + error_ratio), estimate / (1 - error_ratio)
    if hard_limit is not None and low <= hard_limit <= high:
        return True
    return any(edge is not None and low <= edge <= high for edge in edges)


def error_ratio_of(text: str) -> float:
    """How far a guess of this text may be off."""
    return ERROR_RATIO if text.isascii() else WIDE_ERROR_RATIO


# Half of an old error is forgotten within 14 requests; one odd request moves little.
_CORRECTION_STEP = 0.05
_LEAST_FACTOR, _MOST_FACTOR = 0.25, 4.0
# Of a few tokens the template's own are the most.
_LEAST_TOKENS = 32


class Correction:
    """How far guesses of one model are off, learned from the engines' own counts; starts at 1.

    It carries a model whose tokenizer nobody could read.
    """

    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0

    def apply(self, estimate: int) -> int:
        return int(estimate * self.factor)

    def note(self, *, estimate: int, actual: int) -> None:
        """`estimate` before it was corrected."""
        if estimate >= _LEAST_TOKENS and actual >= _LEAST_TOKENS:
            ratio = min(_MOST_FACTOR, max(_LEAST_FACTOR, actual / estimate))
            self.factor += _CORRECTION_STEP * (ratio - self.factor)
