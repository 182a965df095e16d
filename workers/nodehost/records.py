"""What is kept on disk of each engine: `<dir>/<replica_id>.<generation>/{record.json,pid,lock,engine.log}`.

The engine itself writes `pid` before it runs, and holds the flock on `lock` as long as any of it lives: a
node host that dies at any moment loses nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from workers.nodehost.proc import find_process, read_boot_id

NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Record:
    """One engine. `pid` None: not forked yet. `ended_at` set: it is over, whatever else is known."""

    replica_id: str
    generation: int
    address: str
    argv: tuple[str, ...]
    boot_id: str
    created_at: float
    pid: int | None = None
    started_ticks: int | None = None
    forked: bool = False
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.replica_id, self.generation


class BadName(ValueError):
    """A replica id that cannot be a folder name."""


def engine_folder(root: Path, key: tuple[str, int]) -> Path:
    if not NAME_PATTERN.fullmatch(key[0]) or key[1] < 1:
        raise BadName(f"not an engine's name: {key[0]!r}.{key[1]!r}")
    return root / f"{key[0]}.{key[1]}"


def write_record(root: Path, record: Record) -> None:
    folder = engine_folder(root, record.key)
    folder.mkdir(mode=0o700, exist_ok=True)
    draft = folder / "record.json.new"
    draft.write_text(json.dumps(asdict(record)))
    draft.replace(folder / "record.json")


def load_records(root: Path) -> list[Record]:
    """All readable records. A folder without one is left alone: it is not ours, or was never finished."""
    found = []
    for path in sorted(root.glob("*.*/record.json")):
        try:
            content = json.loads(path.read_text())
            found.append(Record(**{**content, "argv": tuple(content["argv"])}))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def drop_record(root: Path, key: tuple[str, int]) -> None:
    shutil.rmtree(engine_folder(root, key), ignore_errors=True)


def drop_socket(record: Record) -> None:
    """The socket file of an ended engine: nobody listens on it any more."""
    path = Path(record.address.removeprefix("unix:"))
    if record.address.startswith("unix:") and path.is_socket():
        path.unlink(missing_ok=True)


def identify(root: Path, record: Record) -> Record:
    """The record with the pid that the engine wrote, where the node host died before it could."""
    if record.pid is not None or record.boot_id != read_boot_id():
        return record
    try:
        pid = int((engine_folder(root, record.key) / "pid").read_text())
    except (OSError, ValueError):
        return record
    found = find_process(pid)
    return replace(record, pid=pid, started_ticks=found.started_ticks if found else 0)


def open_lock(root: Path, key: tuple[str, int]) -> int:
    """A descriptor that holds the engine's lock. Raises BlockingIOError while any of the engine lives."""
    path = engine_folder(root, key) / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(root: Path, key: tuple[str, int]) -> bool:
    try:
        os.close(open_lock(root, key))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def open_log(root: Path, key: tuple[str, int]) -> int:
    path = engine_folder(root, key) / "engine.log"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
