"""Is a TCP port free, and if not, who holds it. Reads /proc; knows nothing of what the port is for."""

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.errors import LauncherError

LISTEN = "0A"  # state of a listening socket in /proc/net/tcp


class PortTaken(LauncherError):
    """Another process listens there."""

    code: ClassVar[str] = "port_taken"


@dataclass(frozen=True)
class Listener:
    pid: int
    command: str


def check_port_free(bind: str, port: int, *, purpose: str, variable: str) -> None:
    """Raises PortTaken naming who listens, or a LauncherError for an address that is not this host's."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except OSError as error:
            raise _explain(error, bind, port, purpose=purpose, variable=variable) from error


def find_listener(port: int) -> Listener | None:
    """The process that listens on the port; None when there is none, or it belongs to a user we cannot look
    into."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for folder in Path("/proc").glob("[0-9]*/fd"):
        if _holds_socket(folder, inodes):
            pid = int(folder.parent.name)
            return Listener(pid, _read_command(pid))
    return None


def _explain(error: OSError, bind: str, port: int, *, purpose: str, variable: str) -> LauncherError:
    if error.errno != errno.EADDRINUSE:
        return LauncherError(
            f"The {purpose} cannot listen on {bind}:{port}: {error.strerror}. SLUICE_BIND sets the"
            f" address, {variable} the port."
        )
    holder = find_listener(port)
    who = f"process {holder.pid} ({holder.command})" if holder else "another process"
    return PortTaken(
        f"Port {port}, which the {purpose} needs, is in use by {who}. Stop it, or set {variable} to a"
        f" free port.",
        port=port,
        pid=holder.pid if holder else None,
    )


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(columns[9])
    return inodes


def _holds_socket(folder: Path, inodes: set[str]) -> bool:
    try:
        for entry in folder.iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:[") and target[8:-1] in inodes:
                return True
    except OSError:
        pass
    return False


def _read_command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    return " ".join(words).strip()[:80]
