"""A profiler's run over some steps of one replica: its phases, its limits, and when it is given up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

MAX_STEPS: Final = 50
USUAL_STEPS: Final = 20
KEPT_PER_REPLICA: Final = 5
STEPS_LIMIT_S: Final = 20.0
"""How long a run waits for its steps; an idle engine makes none."""
EXCUSED_FOR: Final = timedelta(seconds=60)
"""From the start of a run: for so long an engine that does not move writes its trace, and after that it hangs. Twenty
seconds of waiting for steps; the trace of 50 steps of a large model takes some ten on a busy host."""
OPEN_FOR: Final = timedelta(minutes=5)
"""After that nobody carries it out any more: waiting for a worker and the profiler's own limits take less."""
MAX_RESULT_BYTES: Final = 512 * 1024
"""Of JSON in the database, the flame graph included."""


class Phase(StrEnum):
    WAITING = "waiting"
    """Wished; its node moves it on."""
    RUNNING = "running"
    """A worker holds it; the same one moves it on, or the node's next one."""
    DONE = "done"
    FAILED = "failed"


OPEN: Final = (Phase.WAITING, Phase.RUNNING)


@dataclass(frozen=True)
class Lost:
    """Why an open run will bring no result any more."""

    code: str
    text: str


_LEFT: Final = Lost("replica_left", "The replica started anew or left service before it was profiled.")
_OVERDUE: Final = Lost("overdue", "Its node's worker did not carry it out in time. Look at the node.")


def find_loss(
    *, asked_at: datetime, generation: int, current_generation: int, replica_is_ready: bool, now: datetime
) -> Lost | None:
    """Of an open run; None while its result may still come."""
    if generation != current_generation or not replica_is_ready:
        return _LEFT
    return _OVERDUE if now - asked_at >= OPEN_FOR else None
