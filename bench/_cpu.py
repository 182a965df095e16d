"""CPU time and memory of a process and all its descendants, from /proc."""

from __future__ import annotations

from pathlib import Path


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
    """Time on a CPU, user's and kernel's, of all threads, to the nanosecond: the counts of utime and stime are
    samples of the clock's tick, and miss whoever works in short bursts."""
    total_ns = 0
    for one in list_tree(pid):
        for task in Path(f"/proc/{one}/task").glob("*/schedstat"):
            try:
                total_ns += int(task.read_text().split()[0])
            except (OSError, IndexError):
                continue
    return total_ns / 1000


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
