"""The listening socket, and who may share its port: the processes of one data folder, each id once.

`SO_REUSEPORT` lets any process of this user listen beside this one and take a part of its callers without a word.
So each process holds a lock under its id, and nobody joins a port whose listeners are not of its own folder.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pool.domain.errors import PoolError

_SO_ATTACH_FILTER = 26
# Classic BPF over the TCP header (Linux, `struct sock_filter`): drops what has SYN set and ACK not.
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x54, 0, 0, 0x12),  # and SYN | ACK
    (0x15, 0, 1, 0x02),  # if it equals SYN
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # else keep all of it
)


class PortTaken(PoolError):
    code: ClassVar[str] = "port_taken"


class GatewayRuns(PoolError):
    """Another process has the same id; two would write over each other's table, counts and leases."""

    code: ClassVar[str] = "gateway_runs"


class Seat:
    """The lock of one id; held until `leave`, or until the process ends however it ends."""

    def __init__(self, folder: Path, port: int, worker: int) -> None:
        """Raises GatewayRuns."""
        self._folder = folder
        self._port = port
        self._path = folder / f"listens-{port}.{worker}.lock"
        with _hold_folder(folder, port):
            self._file = _take(self._path)
        if self._file is None:
            pid, is_leaving = _read_holder(self._path)
            raise GatewayRuns(
                f"Gateway {worker} of port {port} already runs on {folder.parent}, as process {pid}. Stop it first, "
                "or give this one a data folder and a port of its own.",
                port=port, worker=worker, pid=pid, is_leaving=is_leaving,
            )  # fmt: skip
        self._write(f"{os.getpid()}")

    def open_socket(self, host: str) -> socket.socket:
        """Raises PortTaken, also where a gateway of another data folder listens."""
        with _hold_folder(self._folder, self._port):
            if not self._has_siblings():
                _check_free(host, self._port)
            return open_socket(host, self._port)

    def mark_leaving(self) -> None:
        """It soon listens no more: a successor may wait for the seat."""
        self._write(f"{os.getpid()} leaving")

    def leave(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, text: str) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)

    def _has_siblings(self) -> bool:
        others = (path for path in self._folder.glob(f"listens-{self._port}.*.lock") if path != self._path)
        return any(_is_held(path) for path in others)


def open_socket(host: str, port: int) -> socket.socket:
    """Several processes may open the same port; the kernel spreads the connections."""
    listener = _make_socket(host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setblocking(False)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise PortTaken(f"Port {port} of {host} cannot be opened: {exc.strerror}.", port=port) from exc
    return listener


def stop_handshakes(listener: socket.socket) -> bool:
    """From now on no handshake begins here; those that have begun go on to their end. False if the system cannot.

    Closing a listener resets whoever is in the middle of one, and a group of `SO_REUSEPORT` takes no member out
    before it is closed. A SYN that is dropped comes again after a second, and to a sibling by then.
    """
    code = b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(kept))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True


def _check_free(host: str, port: int) -> None:
    with _make_socket(host) as probe:
        try:
            probe.bind((host, port))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                return  # Opening it tells what is wrong.
            raise PortTaken(
                f"Port {port} of {host} cannot be opened: a process that is no gateway of this data folder listens "
                "there. Stop it, or set SLUICE_GATEWAY_PORT to a free port.",
                port=port,
            ) from exc


def _make_socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _take(path: Path) -> int | None:
    """The locked file's descriptor, which no child inherits; None if another process holds the lock."""
    file = _open(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _is_held(path: Path) -> bool:
    file = _take(path)
    if file is not None:
        os.close(file)
    return file is None


@contextlib.contextmanager
def _hold_folder(folder: Path, port: int) -> Iterator[None]:
    """For a moment: an exclusive look at a port or at a lock must not meet a sibling's start."""
    file = _open(folder / f"listens-{port}.lock")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _read_holder(path: Path) -> tuple[int | None, bool]:
    with contextlib.suppress(OSError, ValueError):
        pid, _, rest = path.read_text().partition(" ")
        return int(pid), rest == "leaving"
    return None, False
