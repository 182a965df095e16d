"""The loop: one thread, one selector; JSON lines over a Unix socket that only its owner may use."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.nodehost.forkservers import Plan
from workers.nodehost.keeper import Keeper, Order, Refused, as_answers

MAX_LINE_BYTES = 1 << 20
ROTATE_EVERY_S = 10.0
LONGEST_SLEEP_S = 10.0
SOCKET_BACKLOG = 64

Request = dict[str, Any]


class Server:
    """Serves until a shutdown request or SIGTERM; neither touches an engine unless it is asked to."""

    def __init__(self, keeper: Keeper, listener: socket.socket) -> None:
        self._keeper = keeper
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._buffers: dict[socket.socket, bytearray] = {}
        self._watched: dict[int, object] = {}
        self._ending = False
        self._rotated_at = time.monotonic()
        self._started_at = time.time()
        self._operations: dict[str, Callable[[Request], Request]] = {
            "spawn": self._spawn,
            "list": self._list,
            "find": self._find,
            "stop": self._stop,
            "forget": self._forget,
            "status": self._status,
            "shutdown": self._shutdown,
        }

    def run(self) -> None:
        wake, waker = socket.socketpair()
        for end in (wake, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._selector.register(wake, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._keeper.reap(now=time.monotonic())
        while not self._done():
            self._sync_watches()
            for key, _ in self._selector.select(self._sleep_s()):
                self._on_ready(key.fileobj, wake)
            now = time.monotonic()
            self._keeper.reap(now=now)
            self._keeper.on_time(now=now)
            if now - self._rotated_at > ROTATE_EVERY_S:
                self._rotated_at = now
                self._keeper.rotate_logs()
        self._keeper.forkservers.close()

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._ending = True

    def _done(self) -> bool:
        return self._ending and self._keeper.next_kill_at() is None

    def _sleep_s(self) -> float:
        until = self._keeper.next_kill_at()
        if until is None:
            return LONGEST_SLEEP_S
        return min(LONGEST_SLEEP_S, max(0.02, until - time.monotonic()))

    def _sync_watches(self) -> None:
        """Fork servers and adopted engines come and go: the selector follows."""
        wanted: dict[int, object] = {peer.fileno(): peer for peer in self._keeper.forkservers.sockets()}
        wanted.update({descriptor: descriptor for descriptor in self._keeper.pidfds()})
        for number, source in list(self._watched.items()):
            if wanted.get(number) != source:
                with contextlib.suppress(KeyError, ValueError, OSError):
                    self._selector.unregister(number)
                del self._watched[number]
        for number, source in wanted.items():
            if number not in self._watched:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(number)
                self._selector.register(number, selectors.EVENT_READ)
                self._watched[number] = source

    def _on_ready(self, source: object, wake: socket.socket) -> None:
        if source is wake:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
        elif source is self._listener:
            self._accept()
        elif isinstance(source, socket.socket):
            self._on_client(source)
        elif isinstance(source, int):
            self._on_watched(source)

    def _on_watched(self, number: int) -> None:
        source = self._watched.get(number)
        if isinstance(source, socket.socket):
            self._keeper.forkservers.on_readable(source, now=time.monotonic())
        elif number in self._keeper.pidfds():
            self._selector.unregister(number)
            self._watched.pop(number, None)
            self._keeper.on_pidfd(number)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] not in (os.geteuid(), 0):
            client.close()
            return
        client.settimeout(1.0)
        self._buffers[client] = bytearray()
        self._selector.register(client, selectors.EVENT_READ)

    def _on_client(self, client: socket.socket) -> None:
        try:
            content = client.recv(65536)
        except OSError:
            content = b""
        buffer = self._buffers[client]
        buffer += content
        if not content or len(buffer) > MAX_LINE_BYTES:
            self._close(client)
            return
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            try:
                client.sendall(json.dumps(self._answer(line)).encode() + b"\n")
            except OSError:
                self._close(client)
                return

    def _close(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        del self._buffers[client]
        client.close()

    def _answer(self, line: bytes) -> Request:
        """Never raises: a bad request must not end the keeper of the engines."""
        try:
            request = json.loads(line)
            return self._operations[request["op"]](request)
        except Refused as exc:
            return {"error": {"code": exc.code, "message": str(exc)}}
        except Exception as exc:  # the edge of the loop: the next request goes on
            os.write(2, f"nodehost: request failed: {type(exc).__name__}\n".encode())
            return {"error": {"code": "bad_request", "message": f"{type(exc).__name__}: not understood"}}

    def _spawn(self, request: Request) -> Request:
        if self._ending:
            raise Refused("ending", "The node host ends and starts nothing more.")
        key = _key(request)
        plan = Plan.read(request["fork"]) if request.get("fork") else None
        order = Order(
            key=key,
            address=str(request["address"]),
            argv=tuple(str(one) for one in request["argv"]),
            env={str(name): str(value) for name, value in request["env"].items()},
            cwd=str(request["cwd"]),
            plan=plan,
            title=f"sluice-engine {key[0]}.{key[1]}",
        )
        record = self._keeper.spawn(order, now=time.monotonic())
        return {"engine": as_answers([record], self._keeper.root)[0]}

    def _list(self, _request: Request) -> Request:
        return {"engines": as_answers(self._keeper.list_records(), self._keeper.root)}

    def _find(self, request: Request) -> Request:
        record = self._keeper.find(_key(request))
        return {"engine": as_answers([record], self._keeper.root)[0] if record else None}

    def _stop(self, request: Request) -> Request:
        grace_s = float(request.get("grace_s", 5.0))
        return {"stopping": self._keeper.stop(_key(request), grace_s=grace_s, now=time.monotonic())}

    def _forget(self, request: Request) -> Request:
        return {"forgotten": self._keeper.forget(_key(request))}

    def _status(self, _request: Request) -> Request:
        return {
            "pid": os.getpid(),
            "since": self._started_at,
            "engines": len(self._keeper.running()),
            "fork_servers": self._keeper.forkservers.describe(),
        }

    def _shutdown(self, request: Request) -> Request:
        """With `stop_engines` it ends when the last engine has; otherwise it leaves them serving."""
        if request.get("stop_engines"):
            grace_s = float(request.get("grace_s", 5.0))
            for record in self._keeper.running():
                self._keeper.stop(record.key, grace_s=grace_s, now=time.monotonic())
        self._ending = True
        return {"ending": True, "engines": len(self._keeper.running())}


def _key(request: Request) -> tuple[str, int]:
    return str(request["replica_id"]), int(request["generation"])


def listen(path: Path) -> socket.socket:
    """A socket of mode 0600 at `path`; one that a dead node host left is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(SOCKET_BACKLOG)
    return listener
