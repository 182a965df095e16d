"""Size and processor time of this installation's processes on this host, by the names that its launcher keeps."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pool.process_figures import ProcessFigures, read_process

RECORD = Path("run") / "supervisor.json"
_seen: dict[tuple[int, int], tuple[float, float]] = {}
"""(pid, start) → monotonic time and processor time at the last look."""


def read_processes(data_dir: Path) -> dict[str, dict[str, float]]:
    """`rss_bytes`, and `cpu_ratio` (1 = one core) since the last call. Empty where no launcher runs."""
    try:
        rows = json.loads((data_dir / RECORD).read_text())["processes"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    now = time.monotonic()
    found: dict[str, dict[str, float]] = {}
    seen: dict[tuple[int, int], tuple[float, float]] = {}
    for name, figures, pid in _list_living(rows):
        key = (pid, figures.started_ticks)
        seen[key] = (now, figures.cpu_s)
        found[name] = {"rss_bytes": float(figures.rss_bytes)}
        before = _seen.get(key)
        if before is not None and now > before[0]:
            found[name]["cpu_ratio"] = (figures.cpu_s - before[1]) / (now - before[0])
    _seen.clear()
    _seen.update(seen)
    return found


def _list_living(rows: Any) -> list[tuple[str, ProcessFigures, int]]:
    living = []
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, Mapping):
            continue
        pid, name = row.get("pid"), row.get("name")
        if not isinstance(pid, int) or not isinstance(name, str):
            continue
        figures = read_process(pid)
        if figures is not None and figures.started_ticks == row.get("start_time"):
            living.append((name, figures, pid))
    return living
