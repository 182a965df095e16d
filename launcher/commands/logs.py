"""`./sluice logs [NAME] [-f]`: the log of a process or of a replica's engine, or the ends of all."""

import argparse
import os
import sys
import time
from pathlib import Path

from launcher.errors import LauncherError
from launcher.layout import Layout, find_layout

LINES = 40
LINES_EACH = 5
POLL_S = 0.3
TAIL_BYTES = 200_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a process (web, gateway, …) or a replica's id")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    parser.add_argument(
        "-n", "--lines", type=int, default=None, metavar="N", help="how many lines to begin with"
    )
    parser.add_argument("--data", metavar="DIR", help="the data folder (default: SLUICE_DATA_DIR, else var/)")


def run(options: argparse.Namespace) -> int:
    layout = find_layout(options.data)
    logs = list_logs(layout)
    if options.name:
        logs = {name: path for name, path in logs.items() if name == options.name}
        if not logs:
            known = ", ".join(list_logs(layout)) or "none yet"
            raise LauncherError(f"There is no log of {options.name!r}. Logs: {known}.", name=options.name)
    count = options.lines or (LINES if options.name else LINES_EACH)
    prefixes = {name: "" if options.name else f"{name:>10} | " for name in logs}
    for name, path in logs.items():
        for line in read_last_lines(path, count):
            sys.stdout.write(prefixes[name] + line + "\n")
    sys.stdout.flush()
    if options.follow:
        follow(logs, prefixes)
    return 0


def list_logs(layout: Layout) -> dict[str, Path]:
    """Processes by name, engines by replica id (newest generation)."""
    logs = {path.stem: path for path in sorted(layout.logs.glob("*.log"))}
    engines = sorted(layout.engines.glob("*/engine.log"), key=lambda path: path.stat().st_mtime)
    for path in engines:
        logs[path.parent.name.partition(".")[0]] = path
    return logs


def read_last_lines(path: Path, count: int) -> list[str]:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-count:]


def follow(logs: dict[str, Path], prefixes: dict[str, str]) -> None:
    """Until interrupted. A file that became shorter was rotated: it is read from its start."""
    positions = {name: path.stat().st_size for name, path in logs.items()}
    while True:
        for name, path in logs.items():
            size = path.stat().st_size if path.exists() else 0
            if size < positions[name]:
                positions[name] = 0
            if size > positions[name]:
                positions[name] += _copy_lines(path, positions[name], prefixes[name])
        sys.stdout.flush()
        time.sleep(POLL_S)


def _copy_lines(path: Path, position: int, prefix: str) -> int:
    with open(path, "rb") as file:
        file.seek(position)
        whole = file.read().rpartition(b"\n")
    for line in whole[0].splitlines():
        sys.stdout.write(prefix + line.decode(errors="replace") + "\n")
    return len(whole[0]) + len(whole[1])
