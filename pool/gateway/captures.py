"""Texts of callers' keys that opted in: input and output of a share of their requests, masked before they leave.

The one module of the gateway that lets a text go anywhere but to an engine and to its caller. Bounded in number and
bytes; what does not fit is dropped and counted.
"""

import re
from collections import deque
from collections.abc import Iterable
from typing import Any

import orjson

from pool.domain.masking import mask
from pool.gateway.answer import PlainAnswer, StreamAnswer
from pool.gateway.relay import Exchange

STREAM_LENGTH = 500
"""Entries in Redis, of at most about 50 kB each; telemetry takes them out as it stores them."""
_MOST_WAITING = 64
_MOST_BYTES = 8 << 20
_MOST_MESSAGES = 64
_EVENT = re.compile(rb"data: (\{[^\n]*\})\n")
_TOO_LARGE = "[not kept: the body was too large]"
_NO_END = "[not kept: the answer was too large, or did not come to its end]"


class Capture:
    """As it is taken: raw, in this process only."""

    __slots__ = ("fact", "fields", "output")

    def __init__(
        self, fact: dict[str, Any], fields: dict[str, Any] | None, output: list[bytes] | None
    ) -> None:
        self.fact = fact
        self.fields = fields
        """None: a reader process had them."""
        self.output = output
        """A whole body, or the events of a stream; None: it was too large, or did not come to its end."""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.output or ()))


class Captures:
    def __init__(self) -> None:
        self._waiting: deque[Capture] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, exchange: Exchange, fact: dict[str, Any]) -> None:
        ask, answer = exchange.ask, exchange.answer
        if ask is None:
            return
        output: list[bytes] | None = []
        if isinstance(answer, StreamAnswer):
            output = answer.copied or []
        elif isinstance(answer, PlainAnswer):
            output = None if answer.whole is None else [answer.whole]
        capture = Capture(fact, ask.fields, output)
        if len(self._waiting) >= _MOST_WAITING or self._bytes + capture.size_bytes > _MOST_BYTES:
            self.dropped += 1
            return
        self._bytes += capture.size_bytes
        self._waiting.append(capture)

    def take(self, limit: int) -> list[Capture]:
        taken = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        self._bytes -= sum(capture.size_bytes for capture in taken)
        return taken

    def drop(self, count: int) -> None:
        """For what was taken and could not be sent."""
        self.dropped += count


def build_entries(captures: Iterable[Capture]) -> list[bytes]:
    """Masked JSON. Takes milliseconds for a long text: not on the loop."""
    return [_build(capture) for capture in captures]


def _build(capture: Capture) -> bytes:
    fact = capture.fact
    kept: dict[str, Any] = {
        name: fact[name] for name in ("request_id", "at", "model", "key", "status", "outcome")
    }
    rows = [["", _TOO_LARGE]] if capture.fields is None else _list_input(capture.fields)
    kept["input"] = [[role[:32], mask(text)] for role, text in rows[-_MOST_MESSAGES:]]
    kept["output"] = _NO_END if capture.output is None else mask("".join(_list_output(capture.output)))
    return orjson.dumps(kept)


def _list_input(fields: dict[str, Any]) -> list[list[str]]:
    rows = [
        [str(message.get("role", "")), _text_of(message.get("content"))]
        for message in _list_of(fields.get("messages"))
        if isinstance(message, dict)
    ]
    for name in ("instructions", "prompt", "input"):
        value = fields.get(name)
        if value is not None:
            rows.append([name, _text_of(value)])
    return rows


def _list_output(pieces: list[bytes]) -> Iterable[str]:
    """Of whole bodies and of events alike; an error of the engine is an output too."""
    content = b"".join(pieces)
    found = [content] if content[:1] == b"{" else _EVENT.findall(content)
    for document in found:
        try:
            answer = orjson.loads(document)
        except orjson.JSONDecodeError:
            continue
        yield from _texts_of(answer)


def _texts_of(answer: Any) -> Iterable[str]:
    if not isinstance(answer, dict):
        return
    if isinstance(answer.get("delta"), str):
        yield answer["delta"]
    for choice in _list_of(answer.get("choices")):
        if isinstance(choice, dict):
            said = choice.get("message") or choice.get("delta") or choice
            yield _text_of(said.get("content", said.get("text")) if isinstance(said, dict) else None)
    for item in _list_of(answer.get("output")):
        if isinstance(item, dict):
            yield _text_of(item.get("content"))


def _text_of(value: Any) -> str:
    """Of a text, of a list of texts or of parts; what is no text is named, not kept."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_part_of(part) for part in value)
    return ""


def _part_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text", part.get("content"))
        return _text_of(text) if text is not None else f"[{str(part.get('type', 'part'))[:32]}]"
    return "[tokens]"


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
