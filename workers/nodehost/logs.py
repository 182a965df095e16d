"""Rotation of engine logs by copy and truncate: the engine keeps its descriptor (O_APPEND)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 10 * 2**20
KEPT_LOGS = 3


def rotate_log(path: Path, *, max_bytes: int = MAX_LOG_BYTES, kept: int = KEPT_LOGS) -> bool:
    """Moves a full log aside. Lines written between copy and truncate are lost; True when it rotated."""
    try:
        if path.stat().st_size <= max_bytes:
            return False
        for number in range(kept - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        copy = path.with_name(f"{path.name}.1")
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
        os.truncate(path, 0)
    except OSError:
        return False
    return True
