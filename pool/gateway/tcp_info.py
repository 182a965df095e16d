"""What the kernel knows of a TCP connection (struct tcp_info of linux/tcp.h)."""

import socket
import struct
from typing import Any

_BYTES = 104
_TOTAL_RETRANS_AT = 100
# The C library's name is not in every build of Python.
_TCP_INFO = 11


def read_retransmits(connection: Any) -> int | None:
    """Segments that were sent again since it began; None where the kernel does not say."""
    try:
        content = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES)
    except OSError:
        return None
    if len(content) < _BYTES:
        return None
    found: int = struct.unpack_from("=I", content, _TOTAL_RETRANS_AT)[0]
    return found
