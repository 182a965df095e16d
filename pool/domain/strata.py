"""Requests of both releases, put into sets of alike ones that are compared within themselves. Pure.

A unit is what one session did in one set: requests of a session are not independent, and its release was drawn once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

BLOCK_S: Final = 10
SHARED_CACHE: Final = 0.5
"""From this share of its prompt on, a request counts as one with a cached prefix."""
SHORT_OUTPUT, MID_OUTPUT = 64, 256
"""Tokens: bounds of the classes of answers' length."""
LEAST_UNITS, MOST_UNITS = 12, 64
MOST_BLOCKS: Final = 12
"""2 min: a set that is still small by then is compared as it is."""


TURNS: Final = 3
TURN_BLOCKS: Final = 60
"""A session is a unit of a time at most 3 times in 10 min. Its release was drawn once, and what makes it slow or fast
stays with it: more of it adds much weight to the drawing and little knowledge."""
MOST_SESSIONS: Final = 2000


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as the gates see it. Times in seconds; None: there is none. `session` None: one for itself.
    `cold`: among the first of its replica; shown, not judged. `sent`: it was answered by the release that it was drawn
    for; else only its failure there counts."""

    candidate: bool
    lane: str = ""
    session: int | None = None
    cached_ratio: float | None = None
    output_tokens: int | None = None
    error: bool = False
    interrupted: bool = False
    ttft_s: float | None = None
    itl_s: float | None = None
    per_token_s: float | None = None
    flags: frozenset[str] = frozenset()
    cold: bool = False
    sent: bool = True

    @property
    def cached_class(self) -> str:
        if self.cached_ratio is None:
            return "?"
        return "cached" if self.cached_ratio >= SHARED_CACHE else "fresh"

    @property
    def output_class(self) -> str:
        tokens = self.output_tokens
        if tokens is None:
            return "?"
        return "short" if tokens < SHORT_OUTPUT else "mid" if tokens < MID_OUTPUT else "long"


@dataclass(frozen=True, slots=True)
class ClosedSet:
    """`columns`: by value of the gate, that of each unit."""

    lane: str
    chosen: tuple[bool, ...]
    columns: tuple[tuple[float, ...], ...]


@dataclass(slots=True)
class OpenSet:
    lane: str
    since: int
    units: dict[str, list[float]] = field(default_factory=dict)
    """By session: `[1.0 if the candidate's, requests, sum of each value]`."""

    def add(self, key: str, candidate: bool, values: Sequence[float]) -> None:
        unit = self.units.get(key)
        if unit is None:
            self.units[key] = [float(candidate), 1.0, *values]
            return
        if bool(unit[0]) is not candidate:
            # The session's release changed within the set, with the weights: its second half is a unit of its own.
            self.add(key + "'", candidate, values)
            return
        unit[1] += 1.0
        for place, value in enumerate(values, 2):
            unit[place] += value

    def close(self) -> ClosedSet:
        chosen, counts, *totals = zip(*self.units.values(), strict=True)
        columns = tuple(
            tuple([total / count for total, count in zip(column, counts, strict=True)]) for column in totals
        )
        return ClosedSet(self.lane, tuple([mine > 0 for mine in chosen]), columns)


@dataclass(slots=True)
class Sets:
    """The open sets of one gate. When one is closed depends on how many units it holds and how old it is, never on
    whose they are: else the last one in would not be drawn by lot."""

    open: dict[str, OpenSet] = field(default_factory=dict)
    mine: int = 0
    others: int = 0
    """Units of closed sets, by side."""
    matched: int = 0
    """Units of the candidate in sets that held stable's too."""
    loose: int = 0
    turns: dict[str, list[int]] | None = None
    """By session: since which block it is counted, how often it was a unit since. None: all count."""

    def add(
        self, stratum: tuple[str, ...], sample: Sample, values: Sequence[float], block: int
    ) -> ClosedSet | None:
        """The set, where this request made it full."""
        name = "|".join(stratum)
        found = self.open.get(name)
        key = self._key_of(sample)
        is_unit = found is not None and key in found.units
        if self.turns is not None and not is_unit and not self._has_turn(self.turns, key, block):
            return None
        if found is None:
            found = self.open[name] = OpenSet(stratum[0], block)
        found.add(key, sample.candidate, values)
        return self._close(name) if len(found.units) >= MOST_UNITS else None

    def close_block(self, block: int) -> Iterator[ClosedSet]:
        """Those that hold enough, or are old."""
        enough = self._enough()
        for name, one in list(self.open.items()):
            if len(one.units) >= enough or block - one.since + 1 >= MOST_BLOCKS:
                yield self._close(name)

    def drop(self) -> None:
        """At a change of weights: what is open was drawn by two different lots."""
        self.open.clear()

    def _key_of(self, sample: Sample) -> str:
        if sample.session is not None:
            return str(sample.session)
        self.loose += 1
        return f"-{self.loose}"

    def _has_turn(self, turns: dict[str, list[int]], key: str, block: int) -> bool:
        counted = turns.get(key)
        if counted is None or block - counted[0] >= TURN_BLOCKS:
            turns.pop(key, None)
            if len(turns) >= MOST_SESSIONS:
                del turns[next(iter(turns))]
            counted = turns[key] = [block, 0]
        counted[1] += 1
        return counted[1] <= TURNS

    def _enough(self) -> int:
        """So many that about two of the rarer side are among them."""
        rarer = (min(self.mine, self.others) + 1) / (self.mine + self.others + 2)
        return int(min(MOST_UNITS, max(LEAST_UNITS, 2 / rarer)))

    def _close(self, name: str) -> ClosedSet:
        closed = self.open.pop(name).close()
        mine = sum(closed.chosen)
        others = len(closed.chosen) - mine
        self.mine += mine
        self.others += others
        if others:
            self.matched += mine
        return closed

    def to_json(self) -> dict[str, Any]:
        opened = {name: [one.lane, one.since, one.units] for name, one in self.open.items()}
        counts = [self.mine, self.others, self.matched, self.loose]
        return {"open": opened, "counts": counts, "turns": self.turns}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Sets:
        opened = {
            name: OpenSet(lane, since, {key: list(unit) for key, unit in units.items()})
            for name, (lane, since, units) in written["open"].items()
        }
        turns = written["turns"]
        made = cls(opened, *written["counts"])
        made.turns = None if turns is None else {key: list(counted) for key, counted in turns.items()}
        return made
