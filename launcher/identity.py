"""Who a process is: pid plus start time, because pids are used again. Reads /proc only."""

import os
import signal
import time
from pathlib import Path

POLL_S = 0.05
SESSION_FIELD = 3
START_TIME_FIELD = 19  # proc(5): field 22, counted after the command's closing bracket


def find_start_time(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None when there is no such process."""
    fields = _stat_fields(pid)
    return int(fields[START_TIME_FIELD]) if fields else None


def is_running(pid: int, start_time: int | None) -> bool:
    """True for the same process, alive and no zombie. An unknown start time never matches."""
    fields = _stat_fields(pid)
    if not fields or start_time is None:
        return False
    return fields[0] not in "ZX" and int(fields[START_TIME_FIELD]) == start_time


def find_parent(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else None


def find_session(pid: int) -> int | None:
    """The session of a living process."""
    fields = _stat_fields(pid)
    return int(fields[SESSION_FIELD]) if fields and fields[0] not in "ZX" else None


def list_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def is_zombie(pid: int) -> bool:
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] == "Z"


def find_children(pid: int) -> list[int]:
    """Direct children, zombies included."""
    children: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [int(child) for child in listing.read_text().split()]
        except OSError:
            continue
    return children


def list_descendants(pid: int) -> list[int]:
    """Children, their children and so on, as they are now."""
    found: list[int] = []
    for child in find_children(pid):
        found += [child, *list_descendants(child)]
    return found


def signal_if_same(pid: int, start_time: int | None, number: int, *, group: bool = False) -> bool:
    """Signals the process (or its group) only when it still is the recorded one."""
    if pid <= 1 or not is_running(pid, start_time):
        return False
    try:
        if group:
            os.killpg(os.getpgid(pid), number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def stop_process(pid: int, start_time: int | None, *, grace_s: float, first: int = signal.SIGTERM) -> bool:
    """Ends the recorded process: `first`, and after the grace SIGKILL to its whole group. True when it is
    gone."""
    if not signal_if_same(pid, start_time, first):
        return True
    if wait_gone(pid, start_time, timeout_s=grace_s):
        return True
    is_leader = os.getpgid(pid) == pid if is_running(pid, start_time) else False
    signal_if_same(pid, start_time, signal.SIGKILL, group=is_leader)
    return wait_gone(pid, start_time, timeout_s=5.0)


def wait_gone(pid: int, start_time: int | None, *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_running(pid, start_time):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return []
    return text.rpartition(")")[2].split()
