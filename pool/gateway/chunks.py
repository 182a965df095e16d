"""The chunked coding of HTTP/1.1 (RFC 9112, section 7.1), as engines write it: no extensions, no trailers."""

SIZES: dict[bytes, int] = {}
"""Sizes that were seen and are well-formed: a look-up is cheaper than reading digits."""
_MAX_SIZES = 20_000
_MAX_DIGITS = 6
_HEX = frozenset(b"0123456789abcdefABCDEF")
_MAX_LINE_BYTES = 64


def read_size(digits: bytes) -> int:
    """0 if they are no plain size of a chunk that has data."""
    if not digits or len(digits) > _MAX_DIGITS or not _HEX.issuperset(digits):
        return 0
    size = int(digits, 16)
    if len(SIZES) < _MAX_SIZES:
        SIZES[digits] = size
    return size


class ChunkedBody:
    """Pieces in, whole chunks out. `failed`: it is no such body, or uses what engines have no use for."""

    __slots__ = ("complete", "failed", "has_more", "held")

    def __init__(self) -> None:
        self.held = b""
        self.complete = False
        self.failed = False
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
        elif not self.failed:
            self.held = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Where the next chunk begins; -1 if this one is not whole, or `failed`."""
        line = data.find(b"\r\n", at, at + _MAX_LINE_BYTES)
        if line < 0:
            self.failed = len(data) - at >= _MAX_LINE_BYTES
            return -1
        digits = data[at:line]
        size = SIZES.get(digits) or read_size(digits)
        start = line + 2
        end = start + size
        if not size and (not digits or digits.strip(b"0")):
            self.failed = True
            return -1
        if len(data) < end + 2:
            return -1
        if data[end : end + 2] != b"\r\n":
            self.failed = True
            return -1
        if size:
            pieces.append(data[start:end])
        self.complete = not size
        return end + 2
