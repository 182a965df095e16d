"""File locks: one holder at a time, freed by the kernel when the holder dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.2


class FileLock:
    """An exclusive lock on a path. The file is removed on release, so a lock that is there is either held
    or stale."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """True when this process holds the lock now; False when another one does."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
            if _is_same_file(fd, self._path):
                self._fd = fd
                return True
            # The last holder removed the file between our open and our lock.
            os.close(fd)

    def write(self, text: str) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def release(self) -> None:
        if self._fd is None:
            return
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = None


@contextmanager
def hold_lock(path: Path, *, on_wait: Callable[[float], None] | None = None) -> Iterator[None]:
    """Waits for the lock; `on_wait` hears the seconds waited so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    started = time.monotonic()
    while not lock.try_acquire():
        if on_wait:
            on_wait(time.monotonic() - started)
        time.sleep(POLL_S)
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """True when a living process holds the lock; leaves no file behind."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
