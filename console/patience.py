"""How long the web server waits for a client, and how much of a head it takes: uvicorn itself has no bound.

Without one a connection that says nothing stays for ever, an endless header fills the memory and costs all of the
event loop's time, and answers that nobody reads are kept.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
"""From the first byte, or from the connection, to the end of the headers."""
WRITE_S = 30.0
"""For a client to take what waits for it."""
LARGEST_HEAD_BYTES = 640 * 1024
"""A gateway's heartbeat is a header of up to 512 KiB."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class PatientHttp(HttpToolsProtocol):
    """Closes what does not get on."""

    _awaits_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._head_timer)
        self._head_timer = None
        _cancel(self._write_timer)
        self._write_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits_head:
            self._head_bytes += len(data)
            self._await_head()
        super().data_received(data)
        if self._awaits_head and self._head_bytes > LARGEST_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaits_head, self._head_bytes = False, 0
        _cancel(self._head_timer)
        self._head_timer = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        # The next head has no time until its first byte comes: uvicorn's keep-alive counts until then.
        self._awaits_head = True
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._write_timer)
        self._write_timer = None
        super().resume_writing()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
