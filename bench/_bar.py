"""A progress bar on stderr; a line now and then where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30
LINE_EVERY_S = 10.0


class Bar:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_live = self._out.isatty()
        self._next_line_s = 0.0

    def show(self, ratio: float, text: str) -> None:
        """`ratio` 0 to 1."""
        now_s = time.monotonic()
        if not self._is_live and now_s < self._next_line_s:
            return
        self._next_line_s = now_s + LINE_EVERY_S
        full = round(min(1.0, ratio) * WIDTH)
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {min(1.0, ratio):4.0%}  {text}"
        self._out.write(f"\r\x1b[K{line}" if self._is_live else f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        if self._is_live:
            self._out.write("\n")
