"""Spreads the events of a stream: at least a target apart, or in groups. The first token leaves at once."""

import asyncio
from collections.abc import Callable

# With groups alone, a group that does not fill up leaves after this long.
_GROUP_WAIT_S = 0.1
# The role and the first token of an answer.
_FREE_EVENTS = 2
# A backlog is worked off within about so many steps, so that pacing delays an answer, never doubles it.
_BACKLOG_STEPS = 10


class Pacer:
    """Whole events in, the same bytes out. `flush` sends what is held; nothing is ever dropped."""

    __slots__ = ("_due_s", "_free", "_group", "_held", "_loop", "_send", "_target_s", "_timer")

    def __init__(self, send: Callable[[bytes], None], *, target_s: float, group: int) -> None:
        """`target_s`: 0 = no least distance. `group`: events that leave together."""
        self._send = send
        self._target_s = target_s or _GROUP_WAIT_S
        self._group = group
        self._held: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._free = _FREE_EVENTS

    def add(self, piece: bytes) -> None:
        events = _split(piece)
        if self._free:
            now, events = events[: self._free], events[self._free :]
            self._free -= len(now)
            self._due_s = self._loop.time() + self._target_s
            self._send(b"".join(now))
            if not events:
                return
        self._held += events
        if self._group > 1 and len(self._held) >= self._group:
            self._step()
        elif self._timer is None:
            self._timer = self._loop.call_at(max(self._due_s, self._loop.time()), self._step)

    def flush(self) -> bytes:
        """What is held, for the caller to send with whatever ends the stream."""
        self.stop()
        rest = b"".join(self._held)
        self._held.clear()
        return rest

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self) -> None:
        self.stop()
        count = max(self._group, len(self._held) // _BACKLOG_STEPS)
        now, self._held = self._held[:count], self._held[count:]
        self._due_s = self._loop.time() + self._target_s
        if now:
            self._send(b"".join(now))
        if self._held:
            self._timer = self._loop.call_at(self._due_s, self._step)


def _split(piece: bytes) -> list[bytes]:
    """One by one; as it is, where lines end in another way."""
    if not piece.endswith(b"\n\n"):
        return [piece]
    return [event + b"\n\n" for event in piece.split(b"\n\n")[:-1]]
