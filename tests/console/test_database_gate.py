from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from console.database_gate import DatabaseGate


@dataclass
class Database:
    answers: bool = False
    now_s: float = 100.0
    asked: int = 0
    gate: DatabaseGate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = DatabaseGate(self.ask, clock=lambda: self.now_s)

    def ask(self) -> bool:
        self.asked += 1
        return self.answers


@pytest.fixture
def database() -> Database:
    return Database()


def test_an_open_gate_asks_nobody(database: Database) -> None:
    assert database.gate.is_open()
    assert database.asked == 0


def test_after_a_failure_requests_are_refused_and_one_a_second_asks(database: Database) -> None:
    database.gate.note_failure()

    assert [database.gate.is_open() for _ in range(10)] == [False] * 10
    assert database.asked == 0
    database.now_s += 1.0
    assert [database.gate.is_open() for _ in range(10)] == [False] * 10
    assert database.asked == 1


def test_further_failures_do_not_put_the_next_look_off(database: Database) -> None:
    database.gate.note_failure()
    database.now_s += 0.9
    database.gate.note_failure()
    database.now_s += 0.1
    database.answers = True

    assert database.gate.is_open()


def test_it_opens_for_all_once_the_database_answers(database: Database) -> None:
    database.gate.note_failure()
    database.answers = True
    database.now_s += 1.0

    assert [database.gate.is_open() for _ in range(10)] == [True] * 10
    assert database.asked == 1
