"""`python -m workers.nodehost --dir <engines> --socket <path>`: exit code 3 when another keeps the folder."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import sys
from pathlib import Path

from workers.nodehost.keeper import Keeper
from workers.nodehost.server import Server, listen

ALREADY_KEPT = 3
# <linux/prctl.h>
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--detach", action="store_true", help="return once it listens; it stays behind")
    options = parser.parse_args()
    return _detach(options) if options.detach else keep(options, ready=None)


def keep(options: argparse.Namespace, *, ready: int | None) -> int:
    """Keeps engines until it is told to end. Writes one byte to `ready` when it listens."""
    options.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(options.dir / "nodehost.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ALREADY_KEPT
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    keeper = Keeper(options.dir.resolve())
    keeper.adopt()
    listener = listen(options.socket)
    if ready is not None:
        os.write(ready, b"k")
        os.close(ready)
    try:
        Server(keeper, listener).run()
    finally:
        listener.close()
        options.socket.unlink(missing_ok=True)
    return 0


def _detach(options: argparse.Namespace) -> int:
    """Its starter is not its parent: nobody but init has to reap it, and no worker takes it along."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.setsid()
        return keep(options, ready=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        if pipe.read(1):
            return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
