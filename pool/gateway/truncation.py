"""Cuts the middle out of a prompt that is too long: whole turns, or paragraphs of one text.

What frames a conversation stays: the system prompt, the first turn and the last. A turn goes as a whole, from the
user's message to all that answers it, so that no tool result loses its call and roles still alternate. A message of
several parts is kept or dropped as a whole.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

Count = Callable[[str], int]
_LISTS = {b"/v1/chat/completions": "messages", b"/v1/responses": "input"}
_TEXTS = {b"/v1/completions": "prompt", b"/v1/responses": "input"}
_HEAD_ROLES = frozenset(("system", "developer"))
_MARK = "[...]"
_EDGE_TOKENS = 4
"""What the separators around the mark may cost."""
_HOLE_RATIO = 0.8
"""At most so much of one text goes: its beginning and end say what it is about."""
# From the best place to cut to the worst.
_SEPARATORS = ("\n\n", "\n", "。", " ")


@dataclass(slots=True)
class _Cut:
    """A text that may lose its middle: where it stands, what stays of it, and the tokens that go."""

    holder: dict[str, Any]
    name: str
    text: str
    tokens: int


def truncate(
    fields: dict[str, Any], *, path: bytes, how: str, excess_tokens: int, count: Count
) -> int | None:
    """The tokens that were cut, at least `excess_tokens`; None = it cannot be done, and nothing was changed.

    `how`: "message" drops turns of a conversation; "paragraph" then also cuts the longest texts. `count`: tokens of
    a text; a fair estimate is enough, since nothing is gained from the messages' own tokens that go with them.
    """
    messages = fields.get(_LISTS.get(path, ""))
    dropped: set[int] = set()
    cut_tokens = 0
    if isinstance(messages, list):
        dropped, cut_tokens = _choose_turns(messages, excess_tokens, count)
    cuts: list[_Cut] = []
    if cut_tokens < excess_tokens and how == "paragraph":
        for holder, name in _list_texts(fields, path, messages, dropped, count):
            cuts.append(_cut_text(holder, name, excess_tokens - cut_tokens, count))
            cut_tokens += cuts[-1].tokens
            if cut_tokens >= excess_tokens:
                break
    if cut_tokens < excess_tokens:
        return None
    for cut in cuts:
        cut.holder[cut.name] = cut.text
    if isinstance(messages, list):
        messages[:] = [message for index, message in enumerate(messages) if index not in dropped]
    return cut_tokens


def _choose_turns(messages: list[Any], excess_tokens: int, count: Count) -> tuple[set[int], int]:
    """Indices of messages to drop, from the middle turn outwards, and their tokens."""
    turns = _split_turns(messages)
    inner = turns[1:-1]
    middle = (len(inner) - 1) / 2
    dropped: set[int] = set()
    tokens = 0
    for _, turn in sorted(enumerate(inner), key=lambda place: (abs(place[0] - middle), place[0])):
        if tokens >= excess_tokens:
            break
        tokens += sum(count(_text_of(messages[index])) for index in turn)
        dropped.update(turn)
    return dropped, tokens


def _split_turns(messages: list[Any]) -> list[list[int]]:
    """Indices, a list per turn; the system's messages, wherever they stand, are in none."""
    turns: list[list[int]] = []
    follows_user = False
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role in _HEAD_ROLES:
            continue
        # Two messages of the user in a row are one turn: the roles of what stays must alternate.
        if not turns or (role == "user" and not follows_user):
            turns.append([])
        turns[-1].append(index)
        follows_user = role == "user"
    return turns


def _list_texts(
    fields: dict[str, Any], path: bytes, messages: object, dropped: set[int], count: Count
) -> list[tuple[dict[str, Any], str]]:
    """What may be cut, the longest first."""
    holders: list[tuple[dict[str, Any], str]] = []
    if isinstance(messages, list):
        for index, message in enumerate(messages):
            if index not in dropped and isinstance(message, dict) and message.get("role") not in _HEAD_ROLES:
                holders.append((message, "output" if "output" in message else "content"))
    elif path in _TEXTS:
        holders.append((fields, _TEXTS[path]))
    texts = [(holder, name) for holder, name in holders if isinstance(holder.get(name), str)]
    return sorted(texts, key=lambda place: -len(place[0][place[1]]))


def _cut_text(holder: dict[str, Any], name: str, excess_tokens: int, count: Count) -> _Cut:
    """As much as is asked for, or as there is between its first and last piece."""
    text: str = holder[name]
    best = _Cut(holder, name, text, 0)
    mark_tokens = count(_MARK) + _EDGE_TOKENS
    most_chars = int(len(text) * _HOLE_RATIO)
    hole_chars = math.ceil(len(text) * (excess_tokens + mark_tokens) / max(1, count(text)))
    while best.tokens < excess_tokens:
        hole = _find_hole(text, min(hole_chars, most_chars))
        if hole is None:
            break
        start, end, separator = hole
        tokens = count(text[start:end]) - mark_tokens
        if tokens > best.tokens:
            best.text = f"{text[:start]}{separator}{_MARK}{separator}{text[end:]}"
            best.tokens = tokens
        if hole_chars >= most_chars:
            break
        hole_chars += hole_chars // 4 + 1
    return best


def _find_hole(text: str, hole_chars: int) -> tuple[int, int, str] | None:
    """Where it starts and ends, and what separates the pieces there; at least so long, around the middle."""
    first = (len(text) - hole_chars) // 2
    found = None
    for separator in _SEPARATORS:
        start = text.rfind(separator, 1, first + len(separator))
        end = text.find(separator, first + hole_chars, len(text) - 1)
        if start > 0 and end > start:
            found = start, end + len(separator), separator
            # Better a cut between lines than a whole chapter.
            if end - start <= 2 * hole_chars:
                break
    return found


def _text_of(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else orjson.dumps(message).decode()
