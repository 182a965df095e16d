from __future__ import annotations

from dataclasses import dataclass

import pytest

from pool.domain.breaker import Fault
from pool.domain.retries import (
    FLOOR_PER_MIN,
    MAX_ATTEMPTS,
    RETRIABLE,
    UNREACHED,
    WINDOW_S,
    RetryBudget,
    find_objection,
    may_retry,
)

T0 = 1_000.0


@dataclass
class Tries:
    attempts: int = 1
    losses: int = 0
    started: bool = False
    no_retry: bool = False


def make_budget(ratio: float = 0.1, *, requests: int = 0, taken: int = 0, now_s: float = T0) -> RetryBudget:
    budget = RetryBudget(ratio)
    for _ in range(requests):
        budget.note_request(now_s)
    for _ in range(taken):
        assert budget.take(now_s)
    return budget


@pytest.mark.parametrize("fault", sorted(RETRIABLE))
def test_fc14_faults_of_the_connection_are_retried(fault: Fault) -> None:
    assert find_objection(fault, Tries()) == ""
    assert may_retry(fault, Tries(), budget=make_budget(), now_s=T0)


@pytest.mark.parametrize("fault", sorted(set(Fault) - RETRIABLE))
def test_fc14_what_was_accepted_is_not_sent_again(fault: Fault) -> None:
    assert find_objection(fault, Tries()) == "accepted"
    assert not may_retry(fault, Tries(), budget=make_budget(), now_s=T0)


@pytest.mark.parametrize(
    ("tries", "objection"),
    [
        (Tries(started=True), "started"),
        (Tries(no_retry=True), "forbidden"),
        (Tries(attempts=MAX_ATTEMPTS - 1), ""),
        (Tries(attempts=MAX_ATTEMPTS), "exhausted"),
        (Tries(losses=1), ""),
        (Tries(losses=2), "exhausted"),
    ],
)
def test_fc06_only_what_nothing_is_known_of_is_tried_again(tries: Tries, objection: str) -> None:
    assert find_objection(Fault.LOST, tries) == objection


@pytest.mark.parametrize(
    ("requests", "expected"), [(0, FLOOR_PER_MIN), (100, FLOOR_PER_MIN), (10_000, 1_000)]
)
def test_the_budget_is_a_share_of_the_requests_with_a_floor(requests: int, expected: int) -> None:
    budget = make_budget(requests=requests)

    taken = sum(budget.take(T0) for _ in range(2_000))

    assert taken == expected
    assert budget.denied == 2_000 - expected


def test_several_processes_divide_the_floor() -> None:
    budget = make_budget()
    budget.processes = 4

    assert sum(budget.take(T0) for _ in range(100)) == FLOOR_PER_MIN // 4


def test_the_budget_of_the_last_minute_fades_and_ends() -> None:
    budget = make_budget(requests=10_000, taken=1_000)

    assert not budget.take(T0 + 1.5 * WINDOW_S - 30)
    assert budget.describe(T0 + 1.5 * WINDOW_S) == {
        "requests_per_min": 5_000,
        "retries_per_min": 500,
        "denied": 1,
    }
    assert budget.describe(T0 + 4 * WINDOW_S)["requests_per_min"] == 0
    assert sum(budget.take(T0 + 4 * WINDOW_S) for _ in range(100)) == FLOOR_PER_MIN


def test_requests_of_an_idle_hour_ago_are_not_counted() -> None:
    budget = make_budget(requests=10_000)

    budget.note_request(T0 + 3_600)

    assert budget.describe(T0 + 3_600)["requests_per_min"] == 1


@pytest.mark.parametrize("fault", sorted(UNREACHED))
def test_fc02_a_try_that_reached_no_engine_is_not_charged(fault: Fault) -> None:
    budget = make_budget(taken=FLOOR_PER_MIN)

    assert may_retry(fault, Tries(), budget=budget, now_s=T0)
    assert not may_retry(Fault.LOST, Tries(), budget=budget, now_s=T0)
