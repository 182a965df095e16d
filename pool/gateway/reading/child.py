"""One reader as the gateway sees it: a process, a socket to it, at most one question at a time."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson

from pool.gateway.reading.frames import HEAD, pack

# So much is handed to the transport at once; more waits until the socket has taken it.
_PIECE_BYTES = 256 * 1024
# So much is taken in one turn of the loop: the library would read on for as long as the reader keeps up (18 ms for
# 27 MB).
_TURN_BYTES = 1024 * 1024
# Nothing of ours: no secret, no proxy.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "PYTHONPATH": str(Path(__file__).parents[3]),
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "LC_ALL": "C.UTF-8",
}

OnAnswer = Callable[["Child", dict[str, Any], bytearray], None]
OnGone = Callable[["Child"], None]


class Child(asyncio.BufferedProtocol):
    """`on_gone` is called once, whoever ended it."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, on_answer: OnAnswer, on_gone: OnGone) -> None:
        self.process = process
        self.busy = True
        """Also until it is connected."""
        self.loaded: set[tuple[str, str | None]] = set()
        self.configuration = 0
        """Number of the settings that it has."""
        self._on_answer = on_answer
        self._on_gone: OnGone | None = on_gone
        self._transport: asyncio.Transport | None = None
        self._unsent = memoryview(b"")
        self._paused = False
        self._meta = bytearray()
        self._payload_bytes = 0
        self._stage = 0
        self._missing = HEAD.size
        # It grows with what comes: to make it in its full length at once would clear 27 MB in one go.
        self._part = bytearray()
        self._scratch = memoryview(bytearray(_PIECE_BYTES))
        self._turn_bytes = 0

    def ask(self, question: dict[str, Any], body: bytes | bytearray = b"") -> None:
        """Only when it is not busy. `body` must not change until the answer."""
        assert self._transport is not None
        self.busy = True
        self._unsent = memoryview(body)
        self._transport.write(pack(question, len(body)))
        self._send_on()

    def kill(self) -> None:
        assert self._transport is not None
        self.process.kill()
        self._transport.abort()
        self._leave()

    # The transport's calls.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of classes of their own.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_PIECE_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.process.kill()
        self._leave()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._scratch[:nbytes])
        self._turn_bytes += nbytes
        if self._turn_bytes >= _TURN_BYTES:
            assert self._transport is not None
            self._turn_bytes = 0
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _take(self, piece: memoryview) -> None:
        while piece:
            taken = min(len(piece), self._missing)
            self._part += piece[:taken]
            self._missing -= taken
            piece = piece[taken:]
            while not self._missing:
                self._end_part()

    def _end_part(self) -> None:
        part, self._part = self._part, bytearray()
        if self._stage == 0:
            self._stage = 1
            self._missing, self._payload_bytes = HEAD.unpack(part)
        elif self._stage == 1:
            self._stage = 2
            self._meta, self._missing = part, self._payload_bytes
        else:
            self._stage, self._missing = 0, HEAD.size
            self._finish(part)

    def _finish(self, payload: bytearray) -> None:
        self._unsent = memoryview(b"")
        self.busy = False
        self._on_answer(self, orjson.loads(self._meta), payload)

    def _read_on(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _send_on(self) -> None:
        assert self._transport is not None
        while self._unsent and not self._paused:
            piece, self._unsent = self._unsent[:_PIECE_BYTES], self._unsent[_PIECE_BYTES:]
            self._transport.write(piece)

    def _leave(self) -> None:
        self._unsent = memoryview(b"")
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone(self)


async def start_child(*, on_answer: OnAnswer, on_gone: OnGone) -> Child:
    """Raises OSError. Runs in the loop's own thread: the kernel ends a reader with the thread that started it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    arguments = [sys.executable, "-m", "pool.gateway.reading.worker", str(theirs.fileno()), str(os.getpid())]
    try:
        # The few milliseconds are wall time: the kernel shares the memory until the new program runs.
        process = subprocess.Popen(  # noqa: ASYNC220
            arguments, env=_ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    child = Child(process, on_answer=on_answer, on_gone=on_gone)
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
    except BaseException:
        process.kill()
        process.wait()
        ours.close()
        raise
    child.busy = False
    return child
