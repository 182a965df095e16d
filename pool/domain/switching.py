"""How long a model worked with less capacity because one engine had to go before the next could come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

MEANT_FOR = timedelta(seconds=60)
"""A replica that was made later than so long after another one left does not replace it: it is new capacity."""


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a replica's phase, with the devices it is placed on."""

    replica: str
    devices: frozenset[str]
    phase: str
    at: datetime


def find_switch(
    replica: str, *, created_at: datetime, devices: frozenset[str], moves: Iterable[Move]
) -> timedelta | None:
    """From the moment when an engine on these devices left service until `replica` was ready, the newest time.

    `moves`: of all replicas of its model and lane, in order. None when it is not ready, or came up beside the others:
    loading beside what serves is no switch.
    """
    here = [move for move in moves if move.replica == replica or move.devices & devices]
    ready = [number for number, move in enumerate(here) if move.replica == replica and move.phase == "ready"]
    if not ready:
        return None
    for number in range(ready[-1] - 1, -1, -1):
        move = here[number]
        if move.phase == "ready":
            # Somebody was ready here before: what had left until then was replaced by that one.
            return None
        is_meant = move.replica == replica or created_at <= move.at + MEANT_FOR
        if is_meant and _left_service(here[:number], move):
            return here[ready[-1]].at - move.at
    return None


def _left_service(earlier: Sequence[Move], move: Move) -> bool:
    before = next((one for one in reversed(earlier) if one.replica == move.replica), None)
    return before is not None and before.phase == "ready" and move.phase != "ready"
