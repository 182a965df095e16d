"""What this process tells the other gateway processes of its replicas, and what it does with what they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pool.gateway.gauges import Gauges
from pool.gateway.shared_view import SharedView


class SharedReplica(Protocol):
    """What is read and written of a replica."""

    @property
    def id(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def in_flight_tokens(self) -> int: ...

    others_in_flight: int | None
    others_tokens: int | None
    kv_used_ratio: float | None
    waiting: int | None
    gauges_at_s: float | None


class Neighbours:
    """`list_replicas` gives all that are listed or still serve something."""

    def __init__(self, view: SharedView, list_replicas: Callable[[], Iterable[SharedReplica]]) -> None:
        self._view = view
        self._list_replicas = list_replicas
        view.provide_loads(self._tell_loads)

    def hear(self, now_s: float) -> None:
        """After each look at the others' entries, and while there is none. Unknown loads are None, not 0."""
        view = self._view
        is_known = view.is_fresh(now_s) or view.process_count == 1
        for replica in self._list_replicas():
            if is_known:
                replica.others_in_flight, replica.others_tokens = view.others(replica.id, replica.generation)
            else:
                replica.others_in_flight = replica.others_tokens = None

    def take_gauges(self, gauges: Mapping[tuple[str, int], tuple[Gauges, float]], now_s: float) -> None:
        """By replica and generation, with their age. Who judges by them looks at `gauges_at_s`."""
        for replica in self._list_replicas():
            found = gauges.get((replica.id, replica.generation))
            if found is not None:
                replica.kv_used_ratio = found[0].kv_used_ratio
                replica.waiting = found[0].waiting
                replica.gauges_at_s = now_s - found[1]

    def _tell_loads(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        return {
            (replica.id, replica.generation): (replica.in_flight, replica.in_flight_tokens)
            for replica in self._list_replicas()
            if replica.in_flight
        }
