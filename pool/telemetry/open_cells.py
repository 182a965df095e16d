"""Cells that are still being added to, in memory, at every resolution. No I/O, no clock.

A cell in memory is whole: what is stored of it plus what came since, so writing it replaces the stored row, and writing
it twice changes nothing. From a level's floor on, memory holds all that is stored; what falls below is late, and is
added to the stored row instead. A coarse cell is written when its time is over, and now and then before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic

from pool.telemetry.rows import C, K, Kind, Row

RECENT_S: Final = 20
"""How long cells of one second stay in memory; facts leave the gateways within a second."""
GRACE_S: Final = {10: 3, 300: 10}
"""Coarse cells are closed this long after their time is over: most of what is late has come."""
EVERY_S: Final = {10: 2.0, 300: 15.0}
"""How often coarse cells are written before they are closed."""
KEEP_S: Final = {1: 2 * 3600, 10: 30 * 86400, 300: 396 * 86400}
AHEAD_S: Final = 120
"""Times further in the future than this come from a clock that is wrong."""


@dataclass
class Level(Generic[K, C]):
    period_s: int
    floor_s: int = 0
    closed_s: int = 0
    """All that begins before is stored as of the last batch."""
    written_at_s: float = 0.0
    cells: dict[tuple[K, int], C] = field(default_factory=dict)
    dirty: set[tuple[K, int]] = field(default_factory=set)
    late: dict[tuple[K, int], C] = field(default_factory=dict)


@dataclass
class Taken(Generic[K, C]):
    """What a transaction is to store: whole rows by resolution, and additions to rows that memory does not hold."""

    whole: dict[int, list[tuple[K, int, Row]]] = field(default_factory=dict)
    late: dict[int, dict[tuple[K, int], C]] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    """Resolution → time before which all coarse cells are stored by it."""


class OpenCells(Generic[K, C]):
    def __init__(self, kind: Kind[K, C], *, now_s: float) -> None:
        self.kind = kind
        self.levels: dict[int, Level[K, C]] = {period_s: Level[K, C](period_s) for period_s in kind.tables}
        for period_s, level in self.levels.items():
            level.floor_s = level.closed_s = _close_before(period_s, now_s)
        self.touched: set[tuple[K, int]] = set()
        """Seconds whose cells changed since they were last published."""
        self.out_of_time = 0

    def settle(self, key: K, at_s: int, increment: C, *, now_s: float) -> None:
        """Adds what happened in the second `at_s`. `increment` is the caller's no more."""
        if at_s > now_s + AHEAD_S or at_s < now_s - KEEP_S[300]:
            self.out_of_time += 1
            return
        for period_s, level in self.levels.items():
            place = (key, at_s - at_s % period_s)
            if place[1] < level.floor_s:
                self._add_late(level, place, increment, now_s=now_s)
                continue
            cell = level.cells.get(place)
            if cell is None:
                cell = level.cells[place] = self.kind.make()
            cell.add(increment)
            level.dirty.add(place)
            if period_s == 1:
                self.touched.add(place)

    def take(self, *, now_s: float) -> Taken[K, C]:
        """What is to be stored now: every second that changed, coarse cells that are over or due."""
        taken: Taken[K, C] = Taken()
        for period_s, level in self.levels.items():
            if period_s > 1:
                taken.closed[period_s] = level.closed_s = max(level.closed_s, _close_before(period_s, now_s))
            due = period_s == 1 or now_s - level.written_at_s >= EVERY_S[period_s]
            if due:
                level.written_at_s = now_s
            places = [place for place in level.dirty if due or place[1] < level.closed_s]
            pack = self.kind.pack
            taken.whole[period_s] = [(key, at_s, pack(key, level.cells[key, at_s])) for key, at_s in places]
            level.dirty.difference_update(places)
            taken.late[period_s], level.late = level.late, {}
        return taken

    def forget_stored(self, *, now_s: float) -> None:
        """After what was taken last has been stored: leaves memory to what may still be added to."""
        for period_s, level in self.levels.items():
            before = int(now_s) - RECENT_S if period_s == 1 else level.closed_s
            # What was added to since it was taken is stored by the next batch only.
            oldest = min((at_s for _, at_s in level.dirty), default=before)
            level.floor_s = max(level.floor_s, min(before, oldest))
            for place in [place for place in level.cells if place[1] < level.floor_s]:
                del level.cells[place]

    def take_touched(self) -> Iterator[tuple[K, int, C]]:
        """Whole cells of the seconds that changed since this was last asked."""
        cells = self.levels[1].cells
        for key, at_s in self.touched:
            cell = cells.get((key, at_s))
            if cell is not None:
                yield key, at_s, cell
        self.touched = set()

    def restore(self, key: K, at_s: int, cell: C, *, period_s: int, is_stored: bool) -> None:
        """Puts a stored cell, or a part of one, into memory while it is filled from the tables."""
        level = self.levels[period_s]
        place = (key, at_s - at_s % period_s)
        found = level.cells.get(place)
        if found is None:
            found = level.cells[place] = self.kind.make()
        found.add(cell)
        if not is_stored:
            level.dirty.add(place)

    @property
    def size(self) -> int:
        """Cells in memory."""
        return sum(len(level.cells) + len(level.late) for level in self.levels.values())

    def _add_late(self, level: Level[K, C], place: tuple[K, int], increment: C, *, now_s: float) -> None:
        if place[1] < now_s - KEEP_S[level.period_s]:
            self.out_of_time += level.period_s == 300
            return
        found = level.late.get(place)
        if found is None:
            found = level.late[place] = self.kind.make()
        found.add(increment)


def _close_before(period_s: int, now_s: float) -> int:
    if period_s == 1:
        return int(now_s) - RECENT_S
    before = int(now_s) - GRACE_S[period_s]
    return before - before % period_s
