"""How an answer ended, read from its last bytes without parsing them: the engine's reason, and what is odd about it.

Nothing of the text goes further than this module.
"""

import re
from collections.abc import Iterable
from typing import Final

from pool.domain.repetition import repeats_itself

_REASON = re.compile(rb'"finish_reason"\s*:\s*"([a-z_]{1,16})"')
_CUT_RESPONSE = re.compile(rb'"incomplete_details"\s*:\s*\{\s*"reason"\s*:\s*"max_output_tokens"')
_STATUS = re.compile(rb'"status"\s*:\s*"(completed|incomplete|failed)"')
_TEXT = re.compile(rb'"(?:content|text|delta)"\s*:\s*"((?:[^"\\]|\\.)*+)"')
_ENDED_TEXT = re.compile(rb'(?:[^"\\]|\\.)*+"')
_NAMES = (b'"content"', b'"text"', b'"delta":"')
# A piece up to this size is taken for one event.
_ONE_EVENT_BYTES = 600
_CALLS = (
    b'"tool_calls":[{',
    b'"function_call":{',
    b'"refusal":"',
    b'"reasoning_content":"',
    b'"reasoning":"',
)
# Below it an answer is short enough to be looked at for being empty; above it, long enough to be in a loop.
_FEW_TOKENS: Final = 1
LOOP_TOKENS: Final = 64


def read_reason(tail: bytes) -> str:
    """`stop`, `length`, `tool_calls` …; "" if none stands there. Of several choices the last one's."""
    start = tail.rfind(b'"finish_reason"')
    while start >= 0:
        found = _REASON.match(tail, start)
        if found is not None:
            return found[1].decode()
        start = tail.rfind(b'"finish_reason"', 0, start)
    return ""


def read_response_reason(tail: bytes) -> str:
    """Of /v1/responses, in the words of the other paths."""
    if _CUT_RESPONSE.search(tail) is not None:
        return "length"
    found = _STATUS.search(tail)
    return "stop" if found is not None and found[1] == b"completed" else ""


def read_flags(
    *, reason: str, output_tokens: int | None, last: bytes, recent: Iterable[bytes] | None, is_whole: bool
) -> list[str]:
    """Of an answer with status 200 that came to its end. `last`: what held its last text. `recent`: the end of a long
    one's pieces. `is_whole`: `last` is the end of a plain body, else events."""
    flags = []
    if reason == "length":
        flags.append("cut_by_length")
    if output_tokens is not None and output_tokens <= _FEW_TOKENS:
        if not output_tokens or _is_blank(last):
            flags.append("empty")
    elif output_tokens is None or output_tokens > LOOP_TOKENS:
        text = _end_of_body(last) if is_whole else b"".join([_text_of(piece) for piece in recent or ()])
        if text and repeats_itself(text.decode("utf-8", "replace")):
            flags.append("repeated")
    return flags


def _is_blank(last: bytes) -> bool:
    """One token may be the engine's mark of the end alone."""
    if any(last.find(call) >= 0 for call in _CALLS):
        return False
    return not any(text.strip() for text in _TEXT.findall(last))


def _text_of(piece: bytes) -> bytes:
    """Of one event, or of several."""
    if len(piece) > _ONE_EVENT_BYTES:
        return b"".join(_TEXT.findall(piece))
    found = _find_last_text(piece)
    return found if found is not None else b""


def _end_of_body(tail: bytes) -> bytes:
    """The text of a plain answer, as far as the tail goes back; escapes stay as they are."""
    found = _find_last_text(tail)
    if found is not None:
        return found
    # It is longer than the tail, which begins within it.
    inside = _ENDED_TEXT.match(tail)
    return inside[0][:-1] if inside is not None else b""


def _find_last_text(piece: bytes) -> bytes | None:
    """`rfind` for the name first: a pattern that is tried at each quote costs several times as much."""
    for name in _NAMES:
        start = piece.rfind(name)
        if start >= 0:
            found = _TEXT.match(piece, start)
            if found is not None:
                return found[1]
    return None
