"""A server that is frozen ends nothing by itself: its client must (FC-57)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import psycopg
import pytest

from console.bounded_connection import (
    COMMANDS,
    LOOPS,
    PAGES,
    BoundedConnection,
    Limits,
    connection_class,
    limits_of,
)

QUICK = Limits(lock_s=1.0, statement_s=1.0, answer_s=0.3)


@pytest.fixture
def connection(db: None) -> Iterator[BoundedConnection]:
    # The suite's own server; its variable names the database that the tests' one was made beside.
    with connection_class(QUICK).connect(os.environ["SLUICE_DATABASE_URL"], autocommit=True) as made:
        yield made


def test_a_frozen_server_is_given_up_fc57(connection: BoundedConnection) -> None:
    backend = connection.info.backend_pid
    os.kill(backend, signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(psycopg.OperationalError, match="no answer"):
            connection.execute("SELECT 1")
    finally:
        os.kill(backend, signal.SIGCONT)

    assert time.monotonic() - began < 5
    assert connection.closed


def test_an_answer_in_time_is_taken(connection: BoundedConnection) -> None:
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_caller_may_wait_less(connection: BoundedConnection) -> None:
    assert list(connection.notifies(timeout=0.01)) == []
    assert not connection.closed


@pytest.mark.parametrize(
    ("process", "limits"),
    [
        ("web", PAGES),
        ("web-8000", PAGES),
        ("control", LOOPS),
        ("worker", LOOPS),
        ("sluice", LOOPS),
        ("manage", COMMANDS),
    ],
)
def test_each_process_has_its_limits(process: str, limits: Limits) -> None:
    assert limits_of(process) == limits


def test_the_client_waits_longer_than_the_server_works() -> None:
    for limits in (PAGES, LOOPS):
        assert limits.lock_s < limits.statement_s < limits.answer_s
    assert "statement_timeout=0 -c lock_timeout=5000" in COMMANDS.server_options
