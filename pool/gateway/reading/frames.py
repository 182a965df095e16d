"""What goes between the gateway and a reader: a head of two lengths, a JSON object, raw bytes."""

import socket
import struct
from typing import Any

import orjson

HEAD = struct.Struct("!II")


def pack(meta: dict[str, Any], payload_bytes: int) -> bytes:
    """All but the payload itself."""
    content = orjson.dumps(meta)
    return HEAD.pack(len(content), payload_bytes) + content


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytearray] | None:
    """None when the other side has left. Blocking; for the reader's side."""
    head = _receive_exactly(connection, HEAD.size)
    if head is None:
        return None
    meta_bytes, payload_bytes = HEAD.unpack(head)
    meta = _receive_exactly(connection, meta_bytes)
    payload = _receive_exactly(connection, payload_bytes)
    if meta is None or payload is None:
        return None
    fields: dict[str, Any] = orjson.loads(meta)
    return fields, payload


def send(connection: socket.socket, meta: dict[str, Any], payload: bytes = b"") -> None:
    connection.sendall(pack(meta, len(payload)))
    if payload:
        connection.sendall(payload)


def _receive_exactly(connection: socket.socket, count: int) -> bytearray | None:
    content = bytearray(count)
    view = memoryview(content)
    while view:
        received = connection.recv_into(view)
        if not received:
            return None
        view = view[received:]
    return content
