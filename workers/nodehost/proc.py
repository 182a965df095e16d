"""Reads /proc: identity, state and sessions of processes."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Fields of /proc/<pid>/stat. `started_ticks` with `pid` and the boot id names one process for ever."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started_ticks: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


@cache
def read_boot_id() -> str:
    return Path(BOOT_ID_FILE).read_text().strip()


def find_process(pid: int) -> ProcessStat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and parentheses: the fields begin after the last one.
    fields = content[content.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started_ticks=int(fields[19]),
    )


def is_same_process(pid: int, *, started_ticks: int) -> bool:
    """True while exactly this process lives (a zombie does not)."""
    found = find_process(pid)
    return found is not None and found.alive and found.started_ticks == started_ticks


def map_sessions() -> dict[int, set[int]]:
    """Living processes by session and by group, in one look at /proc: a look costs 10 µs per process of the host."""
    found: dict[int, set[int]] = {}
    for name in os.listdir("/proc"):
        process = find_process(int(name)) if name.isdigit() else None
        if process is not None and process.alive:
            found.setdefault(process.session, set()).add(process.pid)
            found.setdefault(process.group, set()).add(process.pid)
    return found


def list_session(leader: int) -> list[ProcessStat]:
    """Living processes of the session or group of `leader`, without the leader itself."""
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != leader:
            found = find_process(int(name))
            if found is not None and found.alive and leader in (found.session, found.group):
                members.append(found)
    return members


def kill_session(leader: int) -> int:
    """SIGKILL to what is left of a session whose leader is dead or about to be. Returns how many were left.

    Sound while the leader is not reaped, or any member lives: the number cannot be given away before that.
    """
    members = list_session(leader)
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member.pid, signal.SIGKILL)
    return len(members)
