"""What this process tells the other gateway processes of its replicas, and what it does with what they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pool.gateway.elsewhere import GateNote, read_note
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


class SharedGate(Protocol):
    """What is read and written of a gate."""

    def tell(self) -> dict[str, Any] | None: ...

    def hear(self, notes: Sequence[GateNote] | None, now_s: float) -> None: ...


GATES = "gates"
"""Section of the shared view: release → what waits at its gate, and what it has in flight where."""


class Neighbours:
    """`list_replicas` gives all that are listed or still serve something; `list_gates` each release's, by its name."""

    def __init__(
        self,
        view: SharedView,
        list_replicas: Callable[[], Iterable[SharedReplica]],
        list_gates: Callable[[], Iterable[tuple[str, SharedGate]]],
    ) -> None:
        self._view = view
        self._list_replicas = list_replicas
        self._list_gates = list_gates
        view.provide_loads(self._tell_loads)
        view.provide(GATES, self._tell_gates)

    def hear(self, now_s: float) -> None:
        """After each look at the others' entries, and while there is none. Unknown loads are None, not 0."""
        view = self._view
        is_known = view.is_fresh(now_s) or view.process_count == 1
        for replica in self._list_replicas():
            if is_known:
                replica.others_in_flight, replica.others_tokens = view.others(replica.id, replica.generation)
            else:
                replica.others_in_flight = replica.others_tokens = None
        notes = self._read_notes(now_s)
        for name, gate in self._list_gates():
            gate.hear(notes.get(name, ()) if is_known else None, now_s)

    def take_gauges(self, gauges: Mapping[tuple[str, int], tuple[Gauges, float]], now_s: float) -> None:
        """By replica and generation, with their age. Who judges by them looks at `gauges_at_s`."""
        for replica in self._list_replicas():
            found = gauges.get((replica.id, replica.generation))
            if found is not None:
                replica.kv_used_ratio = found[0].kv_used_ratio
                replica.waiting = found[0].waiting
                replica.gauges_at_s = now_s - found[1]

    def _read_notes(self, now_s: float) -> dict[str, list[GateNote]]:
        notes: dict[str, list[GateNote]] = {}
        for _, told in self._view.list_sections(GATES, now_s):
            for name, content in told.items() if isinstance(told, dict) else ():
                note = read_note(content)
                if note is not None:
                    notes.setdefault(name, []).append(note)
        return notes

    def _tell_gates(self, _now_s: float) -> dict[str, Any]:
        told = {name: gate.tell() for name, gate in self._list_gates()}
        return {name: note for name, note in told.items() if note is not None}

    def _tell_loads(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        return {
            (replica.id, replica.generation): (replica.in_flight, replica.in_flight_tokens)
            for replica in self._list_replicas()
            if replica.in_flight
        }
