"""How many requests a second the ready replicas of a release carry in a lane, and whether that is enough. Pure.

Three ways to know, the best first: minutes in which its replicas were busy and requests waited show what it carries
at most; else its slots ÷ the time that a request takes (Little's law: in flight = rate × time); else nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

HEAD_ROOM: Final = 1.3
"""30 % over the present demand before a step or a promotion."""
FEWEST_SAMPLES: Final = 20
"""Requests from which a release's own times, or a minute's rate, are believed."""
MINUTE_S: Final = 60.0
_WAIT_PART: Final = 0.25
"""A mean wait in the gateways' queue above this part of the lane's target for the first token is over its limit."""
_BUSY_PART: Final = 0.7
"""Of a lane's slots in use, on average over a minute: below, a wait is a burst and no lack of capacity."""


class Source(StrEnum):
    FULL = "full"
    """Carried in minutes in which the replicas were busy and requests waited."""
    SLOTS = "slots"
    """Slots ÷ measured seconds per request."""
    UNKNOWN = "unknown"
    """No request has shown how long one takes."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests that ended within `span_s`, and the seconds that they spent at replicas, all together."""

    requests: int = 0
    busy_s: float = 0.0
    span_s: float = MINUTE_S

    @property
    def per_s(self) -> float:
        return self.requests / self.span_s

    @property
    def in_flight(self) -> float:
        return self.busy_s / self.span_s

    @property
    def request_s(self) -> float | None:
        return self.busy_s / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class Minute:
    """What a release did in a lane within one minute. `wait_s`: all seconds in the gateways' queue together."""

    requests: int
    busy_s: float
    wait_s: float
    replicas: int
    """That answered in it."""


@dataclass(frozen=True, slots=True)
class Room:
    """A lane at a release's ready replicas. `slots_each`: requests of the lane that one replica runs at once.
    `engine_slots_each`: of all lanes; None: not known. `is_shared`: the replicas serve other lanes too."""

    replicas: int
    slots_each: int
    target_s: float
    engine_slots_each: int | None = None
    is_shared: bool = True

    @property
    def slots(self) -> int:
        each = self.slots_each
        return self.replicas * (each if self.engine_slots_each is None else min(each, self.engine_slots_each))


@dataclass(frozen=True, slots=True)
class Capacity:
    """`per_s`: requests a second at most; None: not known. `request_s`: what one takes; None: none was measured."""

    per_s: float | None
    source: Source
    samples: int
    """Requests that the figure stands on."""
    replicas_ready: int
    slots: int
    request_s: float | None = None
    carried_per_s: float | None = None
    """The most that it carried in a minute with the queue within its limit, at as many replicas as are ready now."""


@dataclass(frozen=True, slots=True)
class Lack:
    """`carried_per_s`, `needed_per_s`: requests a second; needed with the head-room where one is asked for."""

    lane: str
    carried_per_s: float
    needed_per_s: float
    demand_per_s: float
    weight: int
    source: Source
    samples: int
    replicas_ready: int
    slots: int


def measure(room: Room, own: Flow, anyone: Flow, minutes: Sequence[Minute] = ()) -> Capacity:
    """`own`: of this release in the lane; `anyone`: of all releases, whose times stand in until it has enough of its
    own. `minutes`: of this release, lately."""
    times = own if own.requests >= FEWEST_SAMPLES else anyone
    request_s = times.request_s
    carried = _best(minute for minute in minutes if not _is_waiting(minute, room))
    full = [minute for minute in minutes if _is_full(minute, room)]
    ready = room.replicas
    scaled = None if carried is None else carried * ready
    if full:
        per_s = max(_best(full) or 0.0, carried or 0.0) * ready
        samples = sum(minute.requests for minute in full)
        return Capacity(per_s, Source.FULL, samples, ready, room.slots, request_s, scaled)
    if not request_s:
        return Capacity(None, Source.UNKNOWN, 0, ready, room.slots, None, scaled)
    per_s = room.slots / request_s
    return Capacity(per_s, Source.SLOTS, times.requests, ready, room.slots, request_s, scaled)


def find_lacks(
    rooms: Mapping[str, Room],
    capacities: Mapping[str, Capacity],
    demand: Mapping[str, Flow],
    weights: Mapping[str, int],
    *,
    head_room: float = HEAD_ROOM,
) -> list[Lack]:
    """Lanes that do not carry their demand × weight (whole percents) with the head-room. A lane without demand lacks
    nothing; where nothing is known nothing is refused, but a lane with demand and no ready replica lacks all of it."""
    found = [
        lack
        for lane, weight in sorted(weights.items())
        if (lack := _lack(lane, weight, capacities[lane], demand.get(lane, Flow()), head_room)) is not None
    ]
    return found or _lack_together(rooms, capacities, demand, weights, head_room)


def unload(room: Room, capacity: Capacity, remaining: int) -> tuple[Room, Capacity]:
    """Of a lane, once at most `remaining` of its ready replicas are left."""
    if remaining >= room.replicas:
        return room, capacity
    left, ratio = replace(room, replicas=remaining), remaining / room.replicas
    per_s = None if capacity.per_s is None else capacity.per_s * ratio
    return left, replace(capacity, per_s=per_s, replicas_ready=remaining, slots=left.slots)


def ratio_of(
    capacities: Mapping[str, Capacity], demand: Mapping[str, Flow], weights: Mapping[str, int]
) -> float | None:
    """The smallest of capacity ÷ demand × weight over the lanes; None: no demand, or nothing known."""
    ratios = []
    for lane, weight in weights.items():
        asked = demand.get(lane, Flow()).per_s * weight / 100
        capacity = capacities[lane]
        if asked > 0 and not capacity.replicas_ready:
            ratios.append(0.0)
        elif asked > 0 and capacity.per_s is not None:
            ratios.append(capacity.per_s / asked)
    return min(ratios, default=None)


def add_flows(flows: Iterable[Flow]) -> Flow:
    """Over the same span."""
    listed = list(flows)
    if not listed:
        return Flow()
    return Flow(sum(flow.requests for flow in listed), sum(flow.busy_s for flow in listed), listed[0].span_s)


def _lack(lane: str, weight: int, capacity: Capacity, flow: Flow, head_room: float) -> Lack | None:
    asked = flow.per_s * weight / 100
    if asked <= 0:
        return None
    carried = capacity.per_s if capacity.replicas_ready else 0.0
    if carried is None or carried >= asked * head_room:
        return None
    return Lack(
        lane, carried, asked * head_room, flow.per_s, weight, capacity.source, capacity.samples,
        capacity.replicas_ready, capacity.slots,
    )  # fmt: skip


def _lack_together(
    rooms: Mapping[str, Room],
    capacities: Mapping[str, Capacity],
    demand: Mapping[str, Flow],
    weights: Mapping[str, int],
    head_room: float,
) -> list[Lack]:
    """Lanes that each fit may still be too many for the engines that they share. `lane` of the lack is empty."""
    shared = [lane for lane in weights if rooms[lane].is_shared and rooms[lane].engine_slots_each is not None]
    if len(shared) < 2:
        return []
    room = rooms[shared[0]]
    slots = room.replicas * (room.engine_slots_each or 0)
    flows = [(demand.get(lane, Flow()), capacities[lane].request_s or 0.0, weights[lane]) for lane in shared]
    asked = sum(flow.per_s * weight / 100 for flow, _, weight in flows)
    in_flight = sum(flow.per_s * weight / 100 * request_s for flow, request_s, weight in flows)
    if not in_flight or in_flight * head_room <= slots:
        return []
    samples = sum(flow.requests for flow, _, _ in flows)
    return [
        Lack(
            "", slots / in_flight * asked, asked * head_room, sum(flow.per_s for flow, _, _ in flows),
            max(weight for _, _, weight in flows), Source.SLOTS, samples, room.replicas, slots,
        )
    ]  # fmt: skip


def _is_waiting(minute: Minute, room: Room) -> bool:
    return minute.wait_s > _WAIT_PART * room.target_s * minute.requests


def _is_full(minute: Minute, room: Room) -> bool:
    """A queue in front of idle replicas says nothing about what they carry."""
    each = room.slots_each if room.engine_slots_each is None else min(room.slots_each, room.engine_slots_each)
    busy = minute.busy_s / (MINUTE_S * max(1, minute.replicas) * max(1, each))
    return minute.requests >= FEWEST_SAMPLES and _is_waiting(minute, room) and busy >= _BUSY_PART


def _best(minutes: Iterable[Minute]) -> float | None:
    """The highest rate of a replica."""
    return max((minute.requests / MINUTE_S / max(1, minute.replicas) for minute in minutes), default=None)
