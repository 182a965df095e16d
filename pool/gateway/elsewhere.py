"""What the gates of other gateway processes hold of the same replicas, and whether they wait for more.

A limit that several processes share belongs to whoever asks, as long as nobody waits. While somebody does, each keeps
to an even part of it: else a process that is always first to see its own slot become free would keep them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Part(NamedTuple):
    """Of one limit, summed over the other processes."""

    held: int
    settled: int
    """Held by those that do not wait for more."""
    waiting: int
    """Processes that do."""


class Hold(NamedTuple):
    """What one process holds of one replica."""

    long: int
    held_rank: int
    """Of the longest lane whose heavy prefill is not over."""
    lanes: Mapping[str, int]


class GateNote(NamedTuple):
    """What one process tells of its gate of one release."""

    waits: Mapping[str, int]
    """Lane → requests in its queue."""
    holds: Mapping[str, Hold]
    """Replica and generation → what it has there."""


class Elsewhere(NamedTuple):
    """One replica in the hands of the others."""

    slots: Part
    lanes: Mapping[str, Part]
    long: int
    held_rank: int


_NOTHING = Hold(0, 0, {})
NOBODY = Elsewhere(Part(0, 0, 0), {}, 0, 0)


def fair_part(limit: int, part: Part, *, held: int) -> int:
    """What this process may hold of the limit, of which the others hold `held`; 0 or less where that is all."""
    room = limit - held
    if part.waiting:
        # Rounded up: a slot that nobody may take helps nobody, and the room is bounded anyway.
        room = min(room, -((part.settled - limit) // (1 + part.waiting)))
    return room


def sum_up(notes: Sequence[GateNote], replica: str, lanes: Sequence[str]) -> Elsewhere:
    """`lanes`: which of them this replica serves."""
    held, settled, waiting, longs, rank = 0, 0, 0, 0, 0
    parts: dict[str, Part] = {}
    for note in notes:
        hold = note.holds.get(replica, _NOTHING)
        count = sum(hold.lanes.values())
        waits = False
        for lane in lanes:
            own, lane_waits = hold.lanes.get(lane, 0), lane in note.waits
            waits |= lane_waits
            if own or lane_waits:
                before = parts.get(lane, NOBODY.slots)
                parts[lane] = Part(
                    before.held + own,
                    before.settled + (0 if lane_waits else own),
                    before.waiting + lane_waits,
                )
        held += count
        settled += 0 if waits else count
        waiting += waits
        longs += hold.long
        rank = max(rank, hold.held_rank)
    return Elsewhere(Part(held, settled, waiting), parts, longs, rank)


def read_note(told: object) -> GateNote | None:
    """None for what a process of another version says in another way: it is as if it said nothing."""
    try:
        waits, holds = told["waits"], told["holds"]  # type: ignore[index]
        return GateNote(
            _read_counts(waits),
            {
                str(replica): Hold(int(longs), int(rank), _read_counts(lanes))
                for replica, (longs, rank, lanes) in holds.items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def sum_waits(notes: Iterable[GateNote], lane: str) -> int:
    return sum(note.waits.get(lane, 0) for note in notes)


def _read_counts(told: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in told.items()}
