"""Tiers of callers, and the order in which the waiting requests of one lane are served."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

RANKS: dict[str, int] = {"vip": 0, "standard": 1, "batch": 2}
"""Lower goes first. A tier that is not listed counts as `standard`."""
VIP, STANDARD, BATCH = 0, 1, 2

FIRST_LANE_OVERDUE_S = 0.5
"""A request of the shortest lane that waited longer moves ahead; in other lanes their TTFT target counts."""
_SORT_OVER = 8
# At most so many are sorted at a time, so that a long one is passed by at most so many.
_SORT_WINDOW = 16
_AHEAD_INTERVAL_S = 0.1
# Tickets that left the queue stay in a heap until it holds so many more of them than of the waiting ones.
_HEAP_SLACK = 32


class Waiting(Protocol):
    """Compared by identity."""

    tier: str
    prompt_tokens: int
    arrived_at_s: float


T = TypeVar("T", bound=Waiting)


def rank_of(tier: str) -> int:
    return RANKS.get(tier, STANDARD)


def slots_for_tiers(slots: int, *, vip_reserve_ratio: float, burst_ratio: float) -> tuple[int, int]:
    """Slots of a replica that `standard` and `batch` may fill, and that `vip` may.

    The reserve rounds down and leaves the others one slot; the burst rounds down, so that an engine with few
    slots is never asked for more than it runs.
    """
    return max(1, slots - int(slots * vip_reserve_ratio)), slots + int(slots * burst_ratio)


class LaneQueue(Generic[T]):
    """Tier, then deadline; the next 16 sorted by length while more than 8 wait; the oldest ahead if overdue.

    At most 10 a second move ahead, so that under lasting overload the tiers still decide. Every operation is
    O(log n) or better, but `find_newest` and `list_expired`.
    """

    __slots__ = ("_ahead", "_ahead_at_s", "_heaps", "_serial", "_waiting", "_windows", "overdue_s")

    def __init__(self, *, overdue_s: float) -> None:
        self.overdue_s = overdue_s
        # In order of arrival, with the time until which it waits. What is not in it has left the queue, wherever
        # else it still stands.
        self._waiting: OrderedDict[T, float] = OrderedDict()
        self._heaps: tuple[list[tuple[float, int, T]], ...] = ([], [], [])
        # The longest first: the next one is the last.
        self._windows: tuple[list[T], ...] = ([], [], [])
        self._serial = 0
        self._ahead: T | None = None
        self._ahead_at_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, ticket: object) -> bool:
        return ticket in self._waiting

    def add(self, ticket: T, *, due_s: float, until_s: float) -> None:
        """`due_s` orders within a tier; after `until_s` it is expired."""
        heap = self._heaps[rank_of(ticket.tier)]
        if len(heap) > len(self._waiting) + _HEAP_SLACK:
            heap[:] = [entry for entry in heap if entry[2] in self._waiting]
            heapq.heapify(heap)
        self._serial += 1
        self._waiting[ticket] = until_s
        heapq.heappush(heap, (due_s, self._serial, ticket))

    def peek(self, now_s: float) -> T | None:
        """Who is next; the same one until it is removed, somebody goes before it, or it is overdue."""
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting))
        if now_s - oldest.arrived_at_s > self.overdue_s and now_s >= self._ahead_at_s:
            self._ahead = oldest
            return oldest
        self._ahead = None
        found = map(self._next_of, self._heaps, self._windows)
        return next(ticket for ticket in found if ticket is not None)

    def take(self, ticket: T, now_s: float) -> None:
        """It is served: after `peek`, whose move ahead this counts."""
        if ticket is self._ahead:
            self._ahead = None
            self._ahead_at_s = now_s + _AHEAD_INTERVAL_S
        self.remove(ticket)

    def remove(self, ticket: T) -> bool:
        """False if it does not wait here."""
        if ticket not in self._waiting:
            return False
        del self._waiting[ticket]
        if not self._waiting:
            for heap, window in zip(self._heaps, self._windows, strict=True):
                heap.clear()
                window.clear()
        return True

    def oldest_wait_s(self, now_s: float) -> float:
        """0 if nobody waits."""
        return now_s - next(iter(self._waiting)).arrived_at_s if self._waiting else 0.0

    def find_newest(self, rank: int) -> T | None:
        return next((one for one in reversed(self._waiting) if rank_of(one.tier) == rank), None)

    def list_expired(self, now_s: float) -> list[T]:
        return [ticket for ticket, until_s in self._waiting.items() if until_s <= now_s]

    def list_waiting(self) -> list[T]:
        return list(self._waiting)

    def _next_of(self, heap: list[tuple[float, int, T]], window: list[T]) -> T | None:
        waiting = self._waiting
        while window and window[-1] not in waiting:
            window.pop()
        if window:
            return window[-1]
        while heap and heap[0][2] not in waiting:
            heapq.heappop(heap)
        if not heap:
            return None
        if len(waiting) <= _SORT_OVER:
            return heap[0][2]
        while heap and len(window) < _SORT_WINDOW:
            ticket = heapq.heappop(heap)[2]
            if ticket in waiting:
                window.append(ticket)
        window.sort(key=_length, reverse=True)
        return window[-1]


def _length(ticket: Waiting) -> int:
    return ticket.prompt_tokens
