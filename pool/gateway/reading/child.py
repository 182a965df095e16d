"""One reader as the gateway sees it: a process, a socket to it, at most one question at a time."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from pool.gateway.reading.frames import HEAD, pack

# So much is handed to the transport at once; more waits until the socket has taken it.
_PIECE_BYTES = 256 * 1024
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
        self._buffer = bytearray(HEAD.size)
        self._filled = 0
        self._stage = 0

    def ask(self, question: dict[str, Any], body: bytes | bytearray = b"") -> None:
        """Only when it is not busy. `body` must not change until the answer."""
        assert self._transport is not None
        self.busy = True
        self._unsent = memoryview(body)
        self._transport.write(pack(question, len(body)))
        self._send_on()

    def kill(self) -> None:
        self.process.kill()
        if self._transport is not None:
            self._transport.abort()
        self._leave()

    # The transport's calls.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_PIECE_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.process.kill()
        self._leave()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        while self._filled == len(self._buffer):
            if self._stage == 0:
                meta_bytes, self._payload_bytes = HEAD.unpack(self._buffer)
                self._expect(1, meta_bytes)
            elif self._stage == 1:
                self._meta = self._buffer
                self._expect(2, self._payload_bytes)
            else:
                self._finish()
                return

    def _expect(self, stage: int, count: int) -> None:
        self._stage, self._buffer, self._filled = stage, bytearray(count), 0

    def _finish(self) -> None:
        meta, payload = orjson.loads(self._meta), self._buffer
        self._expect(0, HEAD.size)
        self._unsent = memoryview(b"")
        self.busy = False
        self._on_answer(self, meta, payload)

    def _send_on(self) -> None:
        while self._unsent and not self._paused and self._transport is not None:
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
    await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
    child.busy = False
    return child
