"""One HTTP request as the server reads it, with the checks that keep two parsers from disagreeing on it."""

from pool.domain.routing_table import KeyRoute
from pool.gateway.config import OWN_HEADERS
from pool.gateway.openai import GatewayError, InvalidRequest

_MAY_REPEAT = b"x-forwarded-for"


class Head:
    """What the head of a request meant, for all requests that come with the same bytes."""

    __slots__ = ("caller", "headers", "keep_alive", "method", "path", "region", "target", "version")

    def __init__(self, request: "Request") -> None:
        self.caller = request.caller
        self.headers = request.headers
        self.keep_alive = request.keep_alive
        self.method = request.method
        self.path = request.path
        self.region = request.region
        self.target = request.target
        self.version = request.version

    def make_request(self, body: bytes, started_at_s: float) -> "Request":
        request = Request(started_at_s)
        request.method = self.method
        request.path = self.path
        request.target = self.target
        request.version = self.version
        request.headers = self.headers
        request.keep_alive = self.keep_alive
        request.caller = self.caller
        request.region = self.region
        request.content_length = request.body_bytes = len(body)
        request.first_piece = body
        return request


class Request:
    """Grows while it is read. `refusal`: what to answer instead of serving it."""

    __slots__ = (
        "_buffer", "body_bytes", "caller", "content_length", "first_piece", "head_bytes", "headers", "keep_alive",
        "method", "path", "refusal", "region", "started_at_s", "target", "version",
    )  # fmt: skip

    def __init__(self, started_at_s: float) -> None:
        self.started_at_s = started_at_s
        self.target = b""
        self.method = b""
        self.path = b""
        """Compared byte for byte with an allow-list: never decoded, never normalised."""
        self.version = "1.1"
        self.headers: dict[bytes, bytes] = {}
        self.head_bytes = 0
        self.content_length = 0
        """0 also when the body is chunked. The parser has checked that it is a number."""
        self.body_bytes = 0
        self.first_piece = b""
        self.keep_alive = False
        self.refusal: GatewayError | None = None
        self.caller: KeyRoute | None = None
        self.region = ""
        """As a header says, whoever wrote it; "" = it does not."""
        self._buffer: bytearray | None = None

    @property
    def body(self) -> bytes | bytearray:
        return self.first_piece if self._buffer is None else self._buffer

    def add_known_header(self, name: bytes, value: bytes) -> None:
        """`name` is one that the gateway reads. Of a header that is no business of the protocol the last one counts."""
        if name in self.headers and name in OWN_HEADERS and name != _MAY_REPEAT:
            self.refusal = InvalidRequest(f"The header {name.decode()} is there twice.")
        self.headers[name] = value.strip()

    def add_body(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        if self._buffer is not None:
            self._buffer += piece
        elif self.first_piece:
            # A body in many small pieces must not cost an object for each of them.
            self._buffer = bytearray(self.first_piece)
            self._buffer += piece
        else:
            self.first_piece = piece

    def drop_body(self) -> None:
        self.first_piece = b""
        self._buffer = None

    def end_head(self, method: bytes, version: str) -> None:
        """Sets `refusal` where another parser could see another message (RFC 9112, section 6.3)."""
        self.method = method
        self.version = version
        self.path = self.target.partition(b"?")[0]
        headers = self.headers
        if b"content-length" in headers:
            self.content_length = int(headers[b"content-length"])
        if version == "1.1" and b"host" in headers and b"transfer-encoding" not in headers:
            return
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or self.version != "1.1"):
            self.refusal = InvalidRequest("Only `Transfer-Encoding: chunked` over HTTP/1.1 is understood.")
        elif coding is not None and b"content-length" in self.headers:
            self.refusal = InvalidRequest("Content-Length and Transfer-Encoding exclude each other.")
        elif self.version not in ("1.0", "1.1"):
            self.refusal = InvalidRequest("Only HTTP/1.0 and HTTP/1.1 are understood.")
        elif self.version == "1.1" and b"host" not in self.headers:
            self.refusal = InvalidRequest("The Host header is missing.")

    @property
    def is_chunked(self) -> bool:
        return b"transfer-encoding" in self.headers

    @property
    def expects_continue(self) -> bool:
        """HTTP/1.0 knows no interim answer."""
        return self.version != "1.0" and self.headers.get(b"expect", b"").lower() == b"100-continue"
