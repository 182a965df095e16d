"""Keeps log files small. Writers append and never notice: the content is copied away and the file cut to
nothing."""

import os
import shutil
from pathlib import Path

LIMIT_BYTES = 10_000_000
KEPT = 3


def rotate_logs(folder: Path, *, limit_bytes: int = LIMIT_BYTES, kept: int = KEPT) -> None:
    for log in folder.glob("*.log"):
        if log.stat().st_size > limit_bytes:
            rotate_log(log, kept=kept)


def rotate_log(log: Path, *, kept: int = KEPT) -> None:
    """`x.log` → `x.log.1` → … → `x.log.<kept>`. Lines written during the copy may be lost; no writer
    stops."""
    for number in range(kept - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    try:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    finally:
        # Also when the copy failed for want of room: a full disk is the worse loss.
        os.truncate(log, 0)
