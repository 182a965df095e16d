"""Brings the gateway's fact of a request and the engine's own times of it together, whichever comes first. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from pool.domain.cells import Cell, SeriesKey
from pool.telemetry.samples import EngineTimes

WAIT_S: Final = 60.0
MOST: Final = 100_000
"""Requests that wait for their other half, of each kind."""

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request whose fact is counted, without the engine's times."""

    request_id: str
    at: datetime
    end_s: int
    replica: str
    e2e_s: float | None
    series: SeriesKey
    attempts: int = 1

    @property
    def engine_id(self) -> str:
        """What the gateway called it at the engine that answered: a later attempt bears its number."""
        return self.request_id if self.attempts < 2 else f"{self.request_id}-{self.attempts}"


@dataclass(frozen=True, slots=True)
class Joined:
    fact: Waiting
    times: EngineTimes

    @property
    def cell(self) -> Cell:
        """What the second of the request's end gains."""
        times, counts = self.times, {"joined": 1}
        sums = {
            "engine_queue_s": times.queue_s,
            "engine_prefill_s": times.prefill_s,
            "engine_decode_s": times.decode_s,
            "joined_e2e_s": self.fact.e2e_s,
        }
        return Cell(counts=counts, sums={name: seconds for name, seconds in sums.items() if seconds})


class Joiner:
    """A request is joined once: its fact is forgotten when its times are found, and both after WAIT_S."""

    def __init__(self) -> None:
        self._facts: _Recent[Waiting] = _Recent()
        self._times: _Recent[EngineTimes] = _Recent()
        self.joined = 0

    def add_fact(self, fact: Waiting, *, now_s: float) -> Joined | None:
        """Only of requests that reached a replica: no engine knows the others."""
        times = self._times.find(fact.engine_id)
        if times is None or not _fits(fact, times):
            self._facts.put(fact.engine_id, fact, now_s=now_s)
            return None
        self._times.remove(fact.engine_id)
        self.joined += 1
        return Joined(fact, times)

    def add_times(self, times: EngineTimes, *, now_s: float) -> Joined | None:
        if times.queue_s is None or times.prefill_s is None or times.decode_s is None:
            return None
        fact = self._facts.find(times.request_id)
        if fact is None or not _fits(fact, times):
            self._times.put(times.request_id, times, now_s=now_s)
            return None
        self._facts.remove(times.request_id)
        self.joined += 1
        return Joined(fact, times)

    def expire(self, *, now_s: float) -> None:
        self._facts.expire(now_s=now_s)
        self._times.expire(now_s=now_s)

    @property
    def waiting(self) -> int:
        return len(self._facts) + len(self._times)


@dataclass
class _Recent(Generic[V]):
    """The oldest go when there are too many, or after WAIT_S."""

    entries: OrderedDict[str, tuple[float, V]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, name: str) -> V | None:
        found = self.entries.get(name)
        return None if found is None else found[1]

    def put(self, name: str, value: V, *, now_s: float) -> None:
        self.entries.pop(name, None)
        self.entries[name] = (now_s, value)
        if len(self.entries) > MOST:
            self.entries.popitem(last=False)

    def remove(self, name: str) -> None:
        self.entries.pop(name, None)

    def expire(self, *, now_s: float) -> None:
        while self.entries:
            name, (since_s, _) = next(iter(self.entries.items()))
            if now_s - since_s < WAIT_S:
                return
            del self.entries[name]


def _fits(fact: Waiting, times: EngineTimes) -> bool:
    """A retried request has times of each replica that it reached; the answer came from one."""
    return not times.replica or times.replica == fact.replica
