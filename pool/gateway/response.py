"""Heads and frames of HTTP/1.1 responses as bytes."""

from collections.abc import Iterable
from http import HTTPStatus

from pool.gateway.openai import GatewayError, error_body

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

# Of one connection only, or the gateway's own to say, or nothing that an engine should tell a client.
_KEPT_BACK = frozenset(
    (
        b"alt-svc", b"authorization", b"connection", b"date", b"keep-alive",
        b"proxy-authenticate", b"proxy-connection", b"server", b"set-cookie", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"www-authenticate", b"x-request-id", b"x-sluice-cache",
        b"x-sluice-lane", b"x-sluice-release", b"x-sluice-replica", b"x-sluice-truncated",
    )
)  # fmt: skip


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


class ResponseHead:
    """Of an engine's answer: the lines that a client may see, with the status line before them."""

    __slots__ = ("is_chunked", "is_plain", "is_stream", "length", "lines", "status")

    def __init__(self, status: int, lines: bytes, *, length: bytes | None, kind: bytes) -> None:
        self.status = status
        self.lines = lines
        self.length = length
        """What the engine announced; None = chunked, or to the end of the connection."""
        self.is_stream = kind.startswith(b"text/event-stream")
        self.is_chunked = False
        self.is_plain = True
        """Its framing is all in these two: no trailers, no other coding, no end of the connection."""


def read_headers(status: int, headers: Iterable[tuple[bytes, bytes]]) -> ResponseHead:
    lines, length, kind, coding, is_plain = status_line(status), None, b"", b"", True
    for name, value in headers:
        name = name.lower()
        if name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            coding += value.lower()
        elif name in (b"connection", b"trailer"):
            is_plain = is_plain and name == b"connection" and value.lower() == b"keep-alive"
        elif name not in _KEPT_BACK:
            lines += b"%b: %b\r\n" % (name, value)
            if name == b"content-type":
                kind = value
    head = ResponseHead(status, lines, length=length, kind=kind)
    head.is_chunked = coding == b"chunked"
    head.is_plain = is_plain and coding in (b"", b"chunked")
    return head


def whole_response(
    status: int, body: bytes, *, kind: bytes = b"application/json", extra: bytes = b"", close: bool = False
) -> bytes:
    """`extra`: complete header lines."""
    ending = b"connection: close\r\n\r\n" if close else b"\r\n"
    head = b"content-type: %b\r\ncontent-length: %d\r\n" % (kind, len(body))
    return b"".join((status_line(status), head, extra, ending, body))


def head_of(answer: bytes) -> bytes:
    """A whole response without its body."""
    return answer[: answer.index(b"\r\n\r\n") + 4]


def refusal(error: GatewayError, *, request_id: str, close: bool, lane: str = "") -> bytes:
    """`lane` "": the request was refused before its length was known."""
    extra = b"x-request-id: %b\r\n" % request_id.encode()
    if lane:
        extra += b"x-sluice-lane: %b\r\n" % lane.encode()
    if error.retry_after_s is not None:
        extra += b"retry-after: %d\r\n" % error.retry_after_s
    if error.status == 401:
        extra += b"www-authenticate: Bearer\r\n"
    if allowed := error.details.get("allow"):
        extra += b"allow: %b\r\n" % str(allowed).encode()
    return whole_response(error.status, error_body(error), extra=extra, close=close)


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)
