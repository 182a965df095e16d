"""Starts child processes: own session, no terminal, output to a file, dead when their parent dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

Identity = Literal["plain", "namespace", "nobody"]
# Whatever the caller's: sockets and files of an installation are nobody else's.
PRIVATE_UMASK = 0o077
EXEC_CHILD = Path(__file__).with_name("exec_child.py")


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    cwd: Path | None = None,
    death_signal: int = signal.SIGTERM,
    identity: Identity = "plain",
) -> subprocess.Popen[bytes]:
    """The death signal follows the *thread* that calls this: call it from one that lives as long as the
    child should."""
    command = wrap_command(argv, death_signal=death_signal, identity=identity)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
            umask=PRIVATE_UMASK,
        )


def wrap_command(argv: Sequence[str], *, death_signal: int, identity: Identity) -> list[str]:
    wrapper = [sys.executable, "-I", "-S", str(EXEC_CHILD)]
    return [*wrapper, str(os.getpid()), str(int(death_signal)), identity, *argv]
