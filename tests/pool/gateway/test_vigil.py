"""Hung engines, forgiving scores, and what two gateway processes tell each other."""

from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from pool.domain.breaker import Breaker, Fault
from pool.domain.progress import SILENCE_S, ProgressWatch
from pool.domain.quarantine import SUSPECT_S, Quarantine
from pool.gateway.replicas import LiveReplica
from pool.gateway.shared_view import SharedView
from pool.gateway.vigil import Vigil

T0 = 1_000.0


@dataclass
class Replica:
    engine: str = "r1.1"
    in_flight: int = 0
    prefill_tokens: int = 0
    last_byte_at_s: float = 0.0
    breaker: Breaker = field(default_factory=Breaker)
    watch: ProgressWatch = field(default_factory=ProgressWatch)


class Process:
    """One gateway process: its replicas, its vigil, its view of the others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replica = Replica()
        self.quarantine = Quarantine()
        self.vigil = Vigil(lambda: [cast(LiveReplica, self.replica)], self.quarantine)
        self.view = SharedView(name)
        self.vigil.share(self.view)

    def hear(self, other: "Process", now_s: float) -> None:
        entry = other.view.write(0, now_s)
        self.view.absorb({other.name.encode(): entry}, 0, now_s)
        self.vigil.hear(self.view, now_s)


@pytest.fixture
def pair() -> tuple[Process, Process]:
    return Process("one"), Process("two")


def test_a_silent_engine_is_held_for_hung_until_it_moves() -> None:
    process = Process("one")
    replica = process.replica
    replica.in_flight = 3

    for second in range(10):
        process.vigil.sweep(T0 + second)
    assert (replica.breaker.closed, replica.breaker.reason) == (False, Fault.HUNG)

    replica.last_byte_at_s = T0 + SILENCE_S + 2
    process.vigil.sweep(T0 + SILENCE_S + 2)
    assert replica.breaker.closed


def test_a_bad_score_fades_with_the_time_between_sweeps() -> None:
    process = Process("one")
    process.replica.breaker.note_failure(Fault.SERVER_ERROR, T0)
    process.vigil.sweep(T0)
    before = process.replica.breaker.error_score

    process.vigil.sweep(T0 + 30)

    assert process.replica.breaker.error_score == pytest.approx(before / 2)


def test_suspects_are_forgotten() -> None:
    process = Process("one")
    process.quarantine.note_death("suspect", "r1.1", T0)

    process.vigil.sweep(T0 + SUSPECT_S)

    assert not process.quarantine.active


def test_fc15_what_one_process_learnt_the_other_one_heeds(pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.replica.breaker.note_failure(Fault.CONNECT, T0)

    two.hear(one, T0 + 0.2)
    assert not two.replica.breaker.allows(T0 + 0.2)
    assert two.vigil.list_opinions(T0 + 0.2) == {}

    one.replica.breaker.note_success(T0 + 0.6)
    two.hear(one, T0 + 0.7)
    assert two.replica.breaker.closed


def test_without_redis_each_process_goes_by_its_own_experience(pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.replica.breaker.note_hung(T0)
    two.hear(one, T0)
    assert not two.replica.breaker.closed

    two.vigil.hear(two.view, T0 + 5)

    assert two.replica.breaker.closed


def test_fc14_a_poison_request_is_refused_by_all_processes(pair: tuple[Process, Process]) -> None:
    one, two = pair
    for engine in ("r1.1", "r2.1"):
        one.quarantine.note_death("poison", engine, T0)

    two.hear(one, T0 + 0.2)

    assert two.quarantine.refuses("poison", T0 + 1)


@pytest.mark.parametrize(
    "sections",
    [
        {"breakers": 7, "quarantine": "x"},
        {"breakers": {"r1.1": 7}, "quarantine": {"poison": "soon"}},
        {"breakers": {"r1.1": {"age_s": 1.0}}},
        {"breakers": {"r1.1": {"age_s": 1.0, "left_s": "long"}}},
    ],
)
def test_what_another_version_says_is_passed_over(sections: dict[str, Any]) -> None:
    process = Process("one")
    entry = orjson.dumps({"at_ms": 0, "loads": {}, "sections": sections})

    process.view.absorb({b"newer": entry}, 0, T0)
    process.vigil.hear(process.view, T0)

    assert process.replica.breaker.closed
    assert not process.quarantine.active


def test_an_opinion_about_an_engine_that_is_not_known_is_no_error(pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.replica.engine = "elsewhere.4"
    one.replica.breaker.note_failure(Fault.CONNECT, T0)

    two.hear(one, T0)

    assert two.replica.breaker.closed
