"""Starts one engine as a direct child: fork, own session, exec. Sound: the node host has a single thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

# Signals that Python ignores in itself and that an ignored-by-inheritance child would keep ignoring.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Launch:
    """`env` is complete, secrets included; it is never written anywhere."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    pid_file: str
    log_fd: int
    lock_fd: int


class LaunchFailed(Exception):
    """The interpreter could not be executed; `errno` says why."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.errno = number


def launch(order: Launch) -> int:
    """The pid of the new session leader. It has written its pid file before this returns."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _run_child(order, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        problem = pipe.read()
    if problem:
        os.waitpid(pid, 0)
        number = int(problem)
        raise LaunchFailed(number, f"{order.argv[0]}: {os.strerror(number)}")
    return pid


def _run_child(order: Launch, writer: int) -> None:
    try:
        os.setsid()
        with open(order.pid_file, "w") as file:
            file.write(str(os.getpid()))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(order.log_fd, 1)
        os.dup2(order.log_fd, 2)
        os.set_inheritable(order.lock_fd, True)
        os.chdir(order.cwd)
        for number in RESTORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(order.argv[0], order.argv, dict(order.env))
    except OSError as exc:
        os.write(writer, str(exc.errno).encode())
    finally:
        os._exit(127)
