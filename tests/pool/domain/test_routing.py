"""The pick of a replica."""

from dataclasses import dataclass
from itertools import repeat

import pytest

from pool.domain.routing import ejection_s, pick_replica


@dataclass(eq=False)
class Candidate:
    in_flight: int = 0
    ejected_until_s: float = 0.0


def test_the_least_loaded_replica_is_picked() -> None:
    busy, free = Candidate(in_flight=2), Candidate(in_flight=1)

    assert pick_replica([busy, free], tried=(), now_s=0, draw=lambda: 0.0) is free


def test_a_tie_is_broken_by_the_draw() -> None:
    replicas = [Candidate(), Candidate(in_flight=1), Candidate(), Candidate()]

    draws = [repeat(number).__next__ for number in (0.0, 0.34, 0.999)]
    picked = [pick_replica(replicas, tried=(), now_s=0, draw=draw) for draw in draws]

    assert picked == [replicas[0], replicas[2], replicas[3]]


def test_a_replica_is_never_tried_twice() -> None:
    only, other = Candidate(), Candidate(in_flight=9)

    assert pick_replica([only, other], tried=[only], now_s=0, draw=lambda: 0.0) is other
    assert pick_replica([only], tried=[only], now_s=0, draw=lambda: 0.0) is None
    assert pick_replica([], tried=[], now_s=0, draw=lambda: 0.0) is None


def test_an_ejected_replica_is_the_last_resort() -> None:
    ejected, busy = Candidate(ejected_until_s=10), Candidate(in_flight=5)

    assert pick_replica([ejected, busy], tried=(), now_s=9, draw=lambda: 0.0) is busy
    assert pick_replica([ejected, busy], tried=[busy], now_s=9, draw=lambda: 0.0) is ejected
    assert pick_replica([ejected, busy], tried=(), now_s=10, draw=lambda: 0.0) is ejected


@pytest.mark.parametrize(("failures", "expected"), [(0, 0.5), (1, 0.5), (2, 1.0), (4, 4.0), (20, 10.0)])
def test_ejection_grows_with_failures_up_to_a_bound(failures: int, expected: float) -> None:
    assert ejection_s(failures) == expected
