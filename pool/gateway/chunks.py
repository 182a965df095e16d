"""The chunked coding of HTTP/1.1 (RFC 9112, section 7.1), as engines write it: small chunks, no extensions, no
trailers. Whatever else comes is left to the parser."""

SIZES: dict[bytes, int] = {}
"""Sizes that were seen and are well-formed: a look-up is cheaper than reading digits."""
_MAX_SIZES = 20_000
# A chunk is held until it is whole, so a large one is not for here.
_MAX_DIGITS = 5
_HEX = frozenset(b"0123456789abcdefABCDEF")


def read_size(digits: bytes) -> int:
    """0 if they are no plain size of a small chunk that has data."""
    if not digits or len(digits) > _MAX_DIGITS or not _HEX.issuperset(digits):
        return 0
    size = int(digits, 16)
    if len(SIZES) < _MAX_SIZES:
        SIZES[digits] = size
    return size


class ChunkedBody:
    """Pieces in, whole chunks out. `held`: what is not given out yet, from the border of a chunk on. `unusual`: what is
    held is for the parser, which may find it good or not."""

    __slots__ = ("complete", "has_more", "held", "unusual")

    def __init__(self) -> None:
        self.held = b""
        self.complete = False
        self.unusual = False
        self.has_more = False
        """Bytes came after its end."""

    def feed(self, data: bytes) -> bytes:
        if self.held:
            data = self.held + data
            self.held = b""
        pieces: list[bytes] = []
        at, end_of_data = 0, len(data)
        while at < end_of_data and not self.complete:
            end = self._take(data, at, pieces)
            if end < 0:
                break
            at = end
        if self.complete:
            self.has_more = at < end_of_data
        else:
            self.held = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Where the next chunk begins; -1 if this one is not whole, or `unusual`."""
        line = data.find(b"\r\n", at, at + _MAX_DIGITS + 2)
        if line < 0:
            self.unusual = not _may_become_size(data[at:])
            return -1
        digits = data[at:line]
        size = SIZES.get(digits) or read_size(digits)
        if not size and digits != b"0":
            self.unusual = True
            return -1
        start = line + 2
        end = start + size
        closing = data[end : end + 2]
        if closing != b"\r\n":
            self.unusual = closing not in (b"", b"\r")
            return -1
        if size:
            pieces.append(data[start:end])
        self.complete = not size
        return end + 2


def _may_become_size(start: bytes) -> bool:
    digits = start.removesuffix(b"\r")
    return 0 < len(digits) <= _MAX_DIGITS and _HEX.issuperset(digits)
