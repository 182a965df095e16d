"""What gateway processes make of each other's loads and of engines' gauges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pool.gateway.elsewhere import GateNote, Hold
from pool.gateway.gauges import Gauges
from pool.gateway.neighbours import Neighbours
from pool.gateway.shared_view import SharedView

NOW_MS = 1_000_000


@dataclass
class Replica:
    id: str = "r1"
    generation: int = 2
    in_flight: int = 0
    in_flight_tokens: int = 0
    others_in_flight: int | None = None
    others_tokens: int | None = None
    kv_used_ratio: float | None = None
    waiting: int | None = None
    gauges_at_s: float | None = None


@dataclass
class Gate:
    note: dict[str, Any] | None = None
    heard: list[Sequence[GateNote] | None] = field(default_factory=list)

    def tell(self) -> dict[str, Any] | None:
        return self.note

    def hear(self, notes: Sequence[GateNote] | None, now_s: float) -> None:
        self.heard.append(notes)


class Process:
    def __init__(self, name: str, *replicas: Replica, processes: int = 1) -> None:
        self.replicas = replicas
        self.gates: dict[str, Gate] = {}
        self.view = SharedView(name, processes=processes)
        self.neighbours = Neighbours(self.view, lambda: self.replicas, lambda: self.gates.items())

    def hear(self, *others: Process, now_s: float = 0.0) -> None:
        entries = {other.view.gateway_id.encode(): other.view.write(NOW_MS, now_s) for other in others}
        self.view.absorb(entries, NOW_MS, now_s)
        self.neighbours.hear(now_s)


def test_loads_of_the_same_generation_arrive() -> None:
    own = Replica()
    me = Process("me", own)

    me.hear(
        Process("a", Replica(in_flight=2, in_flight_tokens=300)),
        Process("b", Replica(in_flight=1, in_flight_tokens=50), Replica(generation=1, in_flight=9)),
    )

    assert (own.others_in_flight, own.others_tokens) == (3, 350)


def test_a_process_alone_knows_that_there_are_no_others() -> None:
    own = Replica()

    Process("me", own).neighbours.hear(5.0)

    assert (own.others_in_flight, own.others_tokens) == (0, 0)


def test_fc29_loads_that_are_too_old_are_unknown_and_not_zero() -> None:
    own = Replica()
    me = Process("me", own)
    me.hear(Process("a", Replica(in_flight=2)))

    me.neighbours.hear(1.5)

    assert (own.others_in_flight, own.others_tokens) == (None, None)


def test_gauges_reach_their_generation_with_the_time_of_their_measurement() -> None:
    own, older = Replica(), Replica(generation=1)
    me = Process("me", own, older)

    me.neighbours.take_gauges(
        {("r1", 2): (Gauges(0.75, 3, None), 1.5), ("gone", 1): (Gauges(1, 1, 1), 0)}, 10.0
    )

    assert (own.kv_used_ratio, own.waiting, own.gauges_at_s) == (0.75, None, 8.5)
    assert older.gauges_at_s is None


def test_gates_hear_what_those_of_their_release_tell() -> None:
    me, other, broken = (Process(name) for name in ("me", "other", "broken"))
    me.gates = {"1 m": Gate(), "2 m": Gate()}
    other.gates = {
        "1 m": Gate({"waits": {"short": 3}, "holds": {"r1.2": [1, 0, {"short": 2}]}}),
        "9 x": Gate(),
    }
    broken.gates = {"1 m": Gate({"waits": 3})}

    me.hear(other, broken)

    (notes,) = me.gates["1 m"].heard
    assert notes == [GateNote({"short": 3}, {"r1.2": Hold(1, 0, {"short": 2})})]
    assert me.gates["2 m"].heard == [()]


def test_fc29_gates_are_told_that_nothing_is_known() -> None:
    me = Process("me")
    me.gates = {"1 m": Gate()}
    me.hear(Process("a"))

    me.neighbours.hear(1.5)

    assert me.gates["1 m"].heard[-1] is None
