"""`<data>/run/supervisor.json`: what runs, for `status`, `down` and the next `up`. The supervisor alone
writes it."""

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from launcher.identity import is_running


@dataclass(frozen=True)
class ProcessRecord:
    """`pid` is None while the process waits for its restart or is stopped. `since` is RFC 3339."""

    name: str
    pid: int | None
    start_time: int | None
    phase: str
    since: str
    restarts: int = 0
    reason: str = ""

    @property
    def is_alive(self) -> bool:
        return self.pid is not None and is_running(self.pid, self.start_time)


@dataclass(frozen=True)
class SupervisorRecord:
    pid: int
    start_time: int
    since: str
    web_url: str
    gateway_url: str
    engine: str
    phase: str
    message: str
    processes: tuple[ProcessRecord, ...]

    @property
    def is_alive(self) -> bool:
        return is_running(self.pid, self.start_time)


def write_record(path: Path, record: SupervisorRecord) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record), indent=1) + "\n")
    os.replace(partial, path)


def read_record(path: Path) -> SupervisorRecord | None:
    """None when there is none, or a power cut left half of one."""
    try:
        fields = json.loads(path.read_text())
        processes = tuple(ProcessRecord(**entry) for entry in fields.pop("processes"))
        return SupervisorRecord(**fields, processes=processes)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
