"""Cells that are still being added to, in memory. No I/O, no clock.

A second in memory is whole: what is stored of it plus what came since, so writing it replaces the stored row, and
writing it twice changes nothing. Ten seconds are made of their seconds, five minutes of their ten seconds, when these
are over; now and then they are written before. What comes for a time that memory has let go is late: it is added to
the stored row. What `take` gives out has to be stored before what the next one gives out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic

from pool.telemetry.rows import C, K, Kind, Row

RECENT_S: Final = 20
"""How long seconds stay in memory; facts leave the gateways within one."""
GRACE_S: Final = 3
"""Ten seconds are closed this long after their end: most of what is late has come."""
TEN_EVERY_S: Final = 5.0
FIVE_MINUTES_EVERY_S: Final = 30.0
"""How often coarse cells are written before they are closed."""
KEEP_S: Final = {1: 2 * 3600, 10: 30 * 86400, 300: 396 * 86400}
AHEAD_S: Final = 120
"""Times further in the future than this come from a clock that is wrong."""

_SECOND, _TEN, _FIVE_MINUTES = 1, 10, 300


@dataclass
class Taken(Generic[K, C]):
    """What a transaction is to store: whole rows by resolution, and additions to rows that memory does not hold."""

    whole: dict[int, list[tuple[K, int, Row]]] = field(default_factory=dict)
    late: dict[int, dict[tuple[K, int], C]] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    """Resolution → time before which all its cells are stored by this and earlier ones."""


class OpenCells(Generic[K, C]):
    def __init__(self, kind: Kind[K, C], *, now_s: float) -> None:
        self.kind = kind
        self.seconds: dict[tuple[K, int], C] = {}
        self.five_minutes: dict[tuple[K, int], C] = {}
        """What the closed ten seconds of these five minutes count."""
        self.closed: dict[int, int] = {
            _TEN: _floor(now_s - GRACE_S, _TEN),
            _FIVE_MINUTES: _floor(now_s - GRACE_S, _FIVE_MINUTES),
        }
        self.floor_s = min(int(now_s) - RECENT_S, self.closed[_TEN])
        """From here on memory holds every second that is stored."""
        self.touched: set[tuple[K, int]] = set()
        """Seconds that changed since they were last published."""
        self.out_of_time = 0
        self._dirty: set[tuple[K, int]] = set()
        self._windows: dict[tuple[K, int], bool] = {}
        """Open ten seconds, and whether they changed since they were written."""
        self._dirty_five_minutes: set[tuple[K, int]] = set()
        self._late: dict[int, dict[tuple[K, int], C]] = {_SECOND: {}, _TEN: {}, _FIVE_MINUTES: {}}
        self._ten_written_s = self._five_minutes_written_s = 0.0

    def settle(self, key: K, at_s: int, increment: C, *, now_s: float) -> None:
        """Adds what happened in the second `at_s`. `increment` is memory's from now on."""
        if at_s > now_s + AHEAD_S:
            self.out_of_time += 1
            return
        place = (key, at_s)
        if at_s >= self.floor_s:
            cell = self.seconds.get(place)
            if cell is None:
                self.seconds[place] = increment
            else:
                cell.add(increment)
            self._dirty.add(place)
            self.touched.add(place)
        if at_s >= self.closed[_TEN]:
            self._windows[key, at_s - at_s % _TEN] = True
        else:
            self._settle_late(place, increment, now_s=now_s)

    def take(self, *, now_s: float) -> Taken[K, C]:
        """What is to be stored now: every second that changed, coarse cells that are over or due."""
        pack = self.kind.pack
        taken: Taken[K, C] = Taken(
            whole={_SECOND: [(key, at_s, pack(key, self.seconds[key, at_s])) for key, at_s in self._dirty]},
            late=self._late,
        )
        self._dirty, self._late = set(), {_SECOND: {}, _TEN: {}, _FIVE_MINUTES: {}}
        taken.whole[_TEN] = self._take_ten(now_s)
        taken.whole[_FIVE_MINUTES] = self._take_five_minutes(now_s)
        taken.closed = dict(self.closed)
        self.floor_s = max(self.floor_s, min(int(now_s) - RECENT_S, self.closed[_TEN]))
        for place in [place for place in self.seconds if place[1] < self.floor_s]:
            del self.seconds[place]
        return taken

    def take_touched(self) -> Iterator[tuple[K, int, C]]:
        """Whole seconds that changed since this was last asked, as far as memory has them."""
        touched, self.touched = self.touched, set()
        for key, at_s in touched:
            cell = self.seconds.get((key, at_s))
            if cell is not None:
                yield key, at_s, cell

    def begin(self, closed: dict[int, int]) -> None:
        """Before memory is filled: up to where the coarse cells are complete in the tables."""
        self.closed |= closed
        self.floor_s = min(self.floor_s, self.closed[_TEN])

    def restore_second(self, key: K, at_s: int, cell: C) -> None:
        """A stored one, from `floor_s` on."""
        self.seconds[key, at_s] = cell
        if at_s >= self.closed[_TEN]:
            self._windows[key, at_s - at_s % _TEN] = True

    def restore_ten(self, key: K, at_s: int, cell: C) -> None:
        """A stored one that is closed, of five minutes that are not."""
        self._add_to_five_minutes((key, at_s - at_s % _FIVE_MINUTES), cell)

    @property
    def size(self) -> int:
        """Cells in memory."""
        return len(self.seconds) + len(self.five_minutes) + sum(map(len, self._late.values()))

    def _settle_late(self, second: tuple[K, int], increment: C, *, now_s: float) -> None:
        """For ten seconds that are closed."""
        key, at_s = second
        if at_s < now_s - KEEP_S[_FIVE_MINUTES]:
            self.out_of_time += 1
            return
        if now_s - KEEP_S[_SECOND] <= at_s < self.floor_s:
            self._add_late(_SECOND, second, increment)
        if at_s >= now_s - KEEP_S[_TEN]:
            self._add_late(_TEN, (key, at_s - at_s % _TEN), increment)
        place = (key, at_s - at_s % _FIVE_MINUTES)
        if place[1] >= self.closed[_FIVE_MINUTES]:
            self._add_to_five_minutes(place, increment)
        else:
            self._add_late(_FIVE_MINUTES, place, increment)

    def _take_ten(self, now_s: float) -> list[tuple[K, int, Row]]:
        """Closes what is over, and hands it on to its five minutes."""
        closed = self.closed[_TEN] = max(self.closed[_TEN], _floor(now_s - GRACE_S, _TEN))
        is_due = now_s - self._ten_written_s >= TEN_EVERY_S
        if is_due:
            self._ten_written_s = now_s
        rows: list[tuple[K, int, Row]] = []
        for place, is_dirty in list(self._windows.items()):
            is_over = place[1] < closed
            if not is_over and not (is_due and is_dirty):
                continue
            key, at_s = place
            cell = self._sum_of_ten(key, at_s)
            if is_dirty:
                rows.append((key, at_s, self.kind.pack(key, cell)))
            if is_over:
                self._add_to_five_minutes((key, at_s - at_s % _FIVE_MINUTES), cell)
                del self._windows[place]
            else:
                self._windows[place] = False
        return rows

    def _take_five_minutes(self, now_s: float) -> list[tuple[K, int, Row]]:
        closed = self.closed[_FIVE_MINUTES] = max(
            self.closed[_FIVE_MINUTES], _floor(self.closed[_TEN], _FIVE_MINUTES)
        )
        is_due = now_s - self._five_minutes_written_s >= FIVE_MINUTES_EVERY_S
        if is_due:
            self._five_minutes_written_s = now_s
        places = [place for place in self._dirty_five_minutes if is_due or place[1] < closed]
        rows = [(key, at_s, self.kind.pack(key, self.five_minutes[key, at_s])) for key, at_s in places]
        self._dirty_five_minutes.difference_update(places)
        for place in [place for place in self.five_minutes if place[1] < closed]:
            del self.five_minutes[place]
        return rows

    def _sum_of_ten(self, key: K, start_s: int) -> C:
        """To be read only: it is the second itself where there is but one."""
        seconds = self.seconds
        cells = [
            cell for at_s in range(start_s, start_s + _TEN) if (cell := seconds.get((key, at_s))) is not None
        ]
        if len(cells) == 1:
            return cells[0]
        total = self.kind.make()
        for cell in cells:
            total.add(cell)
        return total

    def _add_to_five_minutes(self, place: tuple[K, int], cell: C) -> None:
        found = self.five_minutes.get(place)
        if found is None:
            found = self.five_minutes[place] = self.kind.make()
        found.add(cell)
        self._dirty_five_minutes.add(place)

    def _add_late(self, period_s: int, place: tuple[K, int], increment: C) -> None:
        late = self._late[period_s]
        found = late.get(place)
        if found is None:
            found = late[place] = self.kind.make()
        found.add(increment)


def _floor(at_s: float, period_s: int) -> int:
    return int(at_s) - int(at_s) % period_s
