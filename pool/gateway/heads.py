"""Remembers heads that the parser has accepted, so that a repeated one costs a look-up instead of a parse.

Clients and engines repeat themselves: from message to message only the length of the body and the date change. So
a head is remembered without those two, and whatever is not known goes to the parser as before. What is remembered
was accepted by the parser in just these bytes, and only whole messages in one read are looked up (of a stream the
head), so the shortcut cannot read a message differently from the parser. A date that is more than letters, digits and
usual signs is not left out: another line, or half of one, could hide in it.
"""

from typing import Generic, TypeVar

T = TypeVar("T")

# A longer head is rare, and a slow look-up; more of them than this do not come from well-behaved peers.
_MAX_HEAD_BYTES = 2048
_MAX_REMEMBERED = 1024
_MAX_DIGITS = 10
_NAMES = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")
_NAME_BYTES = len(_NAMES[0])
_DATE = b"\r\ndate: "
_DATE_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ,:+-"
_MAX_DATE_BYTES = 40
_MAX_DATES = 64
_DATES: set[bytes] = set()
"""Those that were looked at: a look-up is cheaper than another look at each character."""


class Heads(Generic[T]):
    """Head bytes → what they mean."""

    __slots__ = ("_known", "_streams")

    def __init__(self) -> None:
        self._known: dict[bytes, T] = {}
        self._streams: dict[bytes, T] = {}
        """Apart, since a head whose length was left out looks like one with an empty length."""

    def __len__(self) -> int:
        return len(self._known) + len(self._streams)

    def find(self, message: bytes) -> tuple[T, int, int] | None:
        """Meaning, where the body begins, its length; None if the head is new or the message not just whole."""
        split = _split(message)
        if split is None:
            return None
        key, start, length = split
        if len(message) != start + length:
            return None
        meaning = self._known.get(key)
        return None if meaning is None else (meaning, start, length)

    def remember(self, message: bytes, meaning: T) -> None:
        """`message` was one whole message with a Content-Length, and the parser accepted it."""
        split = _split(message)
        if split is None or len(message) != split[1] + split[2]:
            return
        _keep(self._known, split[0], meaning)

    def find_stream(self, data: bytes) -> tuple[T, int] | None:
        """Meaning of a head without a length, and where the body begins."""
        end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
        meaning = self._streams.get(_without_date(data[:end])) if end > 0 else None
        return None if meaning is None else (meaning, end + 4)

    def remember_stream(self, data: bytes, meaning: T) -> None:
        """`data` began with a head without a length, and the parser accepted it."""
        end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
        if end > 0:
            _keep(self._streams, _without_date(data[:end]), meaning)

    def forget_all(self) -> None:
        self._known.clear()
        self._streams.clear()


def _keep(known: dict[bytes, T], key: bytes, meaning: T) -> None:
    if len(known) >= _MAX_REMEMBERED:
        known.clear()
    known[key] = meaning


def _without_date(head: bytes) -> bytes:
    start = head.find(_DATE)
    if start < 0:
        return head
    end = head.find(b"\r\n", start + 2)
    date = head[start + len(_DATE) :] if end < 0 else head[start + len(_DATE) : end]
    if date not in _DATES:
        if len(date) > _MAX_DATE_BYTES or date.translate(None, _DATE_CHARS):
            return head
        if len(_DATES) >= _MAX_DATES:
            _DATES.clear()
        _DATES.add(date)
    return head[:start] + head[end:] if end > 0 else head[:start]


def _split(message: bytes) -> tuple[bytes, int, int] | None:
    """The head without the digits of its length, where the body begins, and the length."""
    end = message.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    if end < 0:
        return None
    name = message.find(_NAMES[0], 0, end)
    if name < 0:
        name = message.find(_NAMES[1], 0, end)
        if name < 0:
            return None
    first = name + _NAME_BYTES
    last = message.find(b"\r\n", first, end + 2)
    digits = message[first:last]
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    return _without_date(message[:first] + message[last:end]), end + 4, int(digits)
