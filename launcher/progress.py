"""What a person sees while a step takes longer than a second.

On a terminal one moving line, elsewhere a plain line now and then."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PLAIN_EVERY_S = 10.0
MOVING_EVERY_S = 0.5
WIDTH = 100


class Progress:
    """Several steps may run at once, each in a thread of its own; a terminal's last line shows all that are
    open."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._moves = self._stream.isatty()
        self._lock = threading.Lock()
        self._open: dict[str, Step] = {}
        self._drawn = False

    def say(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._wipe()
            self._write(text + "\n")

    @contextmanager
    def step(self, title: str) -> "Iterator[Step]":
        """Shown while it is open, and with its duration when it took longer than a second."""
        step = Step(title)
        with self._lock:
            self._open[title] = step
        stop = threading.Event()
        teller = threading.Thread(target=self._tell, args=(step, stop), daemon=True)
        teller.start()
        failed = True
        try:
            yield step
            failed = False
        finally:
            stop.set()
            teller.join()
            with self._lock:
                del self._open[title]
            if failed or step.elapsed_s >= 1.0:
                self.say(f"{'failed' if failed else 'done'}  {step.render()}")

    def _tell(self, step: "Step", stop: threading.Event) -> None:
        last = time.monotonic() - PLAIN_EVERY_S + 1.0
        while not stop.wait(MOVING_EVERY_S):
            if self._moves:
                self._draw()
            elif time.monotonic() - last >= PLAIN_EVERY_S:
                last = time.monotonic()
                self.say(f"  …   {step.render()}")

    def _draw(self) -> None:
        with self._lock:
            text = "  …   " + " · ".join(step.render() for step in self._open.values())
            self._write("\r\x1b[K" + text[:WIDTH])
            self._drawn = True

    def _wipe(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # The terminal went away: the work goes on, the logs tell the rest.
            self._stream = open("/dev/null", "w")  # noqa: SIM115


class Step:
    """One piece of work under way; `note` may be changed from any thread."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.note = ""
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def render(self) -> str:
        note = f": {self.note}" if self.note else ""
        return f"{self.title}{note}, {self.elapsed_s:.0f} s"
