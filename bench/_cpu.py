"""CPU time and memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")


def list_tree(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _read_stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while new := {one for one, parent in parents.items() if parent in found} - found:
        found |= new
    return found


def cpu_us(pid: int) -> float:
    """User and system time. Exact to a tick (10 ms), so measure seconds, not requests."""
    ticks = 0
    for one in list_tree(pid):
        if fields := _read_stat(one):
            ticks += int(fields[11]) + int(fields[12])
    return ticks * _TICK_US


def rss_bytes(pid: int) -> int:
    total = 0
    for one in list_tree(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
    return total


def _read_stat(pid: int) -> list[str]:
    """The fields after the name in brackets; [] when the process has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []
