"""What this process tells the other gateway processes of its replicas, and what it does with what they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from pool.domain.breaker import Breaker
from pool.domain.quarantine import Quarantine
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

    @property
    def breaker(self) -> Breaker: ...

    others_in_flight: int | None
    others_tokens: int | None
    kv_used_ratio: float | None
    waiting: int | None
    gauges_at_s: float | None


class Neighbours:
    """`list_replicas` gives all that are listed or still serve something."""

    def __init__(
        self, view: SharedView, list_replicas: Callable[[], Iterable[SharedReplica]], quarantine: Quarantine
    ) -> None:
        self._view = view
        self._list_replicas = list_replicas
        self._quarantine = quarantine
        view.provide_loads(self._tell_loads)
        view.provide("breakers", self._tell_breakers)
        view.provide("quarantine", quarantine.share)

    def hear(self, now_s: float) -> None:
        """After each look at the others' entries, and while there is none. Unknown loads are None, not 0."""
        view = self._view
        is_fresh = view.is_fresh(now_s)
        is_alone = view.process_count == 1
        opinions = self._sort_opinions(now_s)
        for replica in self._list_replicas():
            if is_fresh or is_alone:
                replica.others_in_flight, replica.others_tokens = view.others(replica.id, replica.generation)
            else:
                replica.others_in_flight = replica.others_tokens = None
            replica.breaker.hear_opinions(opinions.get(_name(replica), ()), now_s)
        self._quarantine.hear((told for _, told in view.list_sections("quarantine", now_s)), now_s)

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

    def _tell_breakers(self, now_s: float) -> dict[str, dict[str, Any]]:
        told = ((replica, replica.breaker.share_opinion(now_s)) for replica in self._list_replicas())
        return {_name(replica): opinion for replica, opinion in told if opinion is not None}

    def _sort_opinions(self, now_s: float) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for _, told in self._view.list_sections("breakers", now_s):
            for name, opinion in told.items():
                found.setdefault(name, []).append(opinion)
        return found


def _name(replica: SharedReplica) -> str:
    return f"{replica.id}.{replica.generation}"
