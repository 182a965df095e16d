"""What the kernel says of processes: memory, faults, processor time. None where it does not say, or they are gone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pool.domain.prometheus import Page

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """`started_ticks` since boot: with the pid it names one process. `cpu_s`: user and system time together."""

    started_ticks: int
    rss_bytes: int
    major_faults: int
    cpu_s: float
    threads: int


def read_process(pid: int | str = "self", *, proc: str = "/proc") -> ProcessFigures | None:
    """One read of /proc/<pid>/stat, some 20 microseconds."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            content = file.read()
        # The command name may hold spaces and parentheses: the fields begin after the last one.
        fields = content[content.rindex(b")") + 2 :].split()
        return ProcessFigures(
            started_ticks=int(fields[19]),
            rss_bytes=int(fields[21]) * PAGE_BYTES,
            major_faults=int(fields[9]),
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
            threads=int(fields[17]),
        )
    except (OSError, ValueError, IndexError):
        return None


def add_own_process(page: Page) -> None:
    """The series `process_…` of this process, under the names that all clients of Prometheus use."""
    own = read_process()
    if own is not None:
        page.set("process_resident_memory_bytes", own.rss_bytes)
        page.set("process_cpu_seconds_total", own.cpu_s)
        page.set("process_threads", own.threads)
        page.set("process_major_page_faults_total", own.major_faults)
        page.set("process_start_time_seconds", _boot_time_s(own.started_ticks))
    page.set("process_open_fds", _count_files())


def _boot_time_s(ticks: int) -> float | None:
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("btime")) + ticks / TICKS_PER_S
    except (OSError, StopIteration, ValueError):
        return None


def _count_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the folder's own
    except OSError:
        return None
