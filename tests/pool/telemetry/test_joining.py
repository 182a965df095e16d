"""The engine's times of a request join its fact, in either order, once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pool.domain.cells import SeriesKey
from pool.telemetry.joining import MOST, WAIT_S, Joiner, Waiting
from pool.telemetry.samples import EngineTimes

FACT = Waiting("req-1", datetime(2026, 11, 30, tzinfo=UTC), 1_796_000_001, "r1", 1.5, SeriesKey("chatty"))
TIMES = EngineTimes("req-1", "", 0.1, 0.2, 0.9, 1)


def test_the_fact_first() -> None:
    joiner = Joiner()

    assert joiner.add_fact(FACT, now_s=0) is None
    joined = joiner.add_times(TIMES, now_s=1)

    assert joined is not None
    assert joined.cell.counts == {"joined": 1}
    assert joined.cell.sums == {
        "engine_queue_s": 0.1, "engine_prefill_s": 0.2, "engine_decode_s": 0.9, "joined_e2e_s": 1.5,
    }  # fmt: skip
    assert joiner.waiting == 0


def test_the_engine_first() -> None:
    joiner = Joiner()

    assert joiner.add_times(TIMES, now_s=0) is None
    joined = joiner.add_fact(FACT, now_s=1)

    assert joined is not None
    assert (joined.times, joiner.waiting) == (TIMES, 0)


def test_a_request_joins_once() -> None:
    joiner = Joiner()
    joiner.add_fact(FACT, now_s=0)
    joiner.add_times(TIMES, now_s=0)

    assert joiner.add_times(TIMES, now_s=0) is None
    assert joiner.joined == 1


def test_the_times_of_a_replica_that_failed_do_not_join_the_answer_of_another() -> None:
    joiner = Joiner()
    joiner.add_fact(FACT, now_s=0)
    failed = EngineTimes("req-1", "r9", 5.0, 5.0, 5.0, 0)

    assert joiner.add_times(failed, now_s=0) is None
    assert joiner.add_times(EngineTimes("req-1", "r1", 0.1, 0.2, 0.9, 0), now_s=0) is not None


def test_a_retried_request_joins_the_times_of_its_last_attempt() -> None:
    joiner = Joiner()
    joiner.add_times(EngineTimes("req-1", "r9", 5.0, 5.0, 5.0, 0), now_s=0)
    joiner.add_times(EngineTimes("req-1-2", "r1", 0.1, 0.2, 0.9, 0), now_s=0)

    joined = joiner.add_fact(replace(FACT, attempts=2), now_s=1)

    assert joined is not None
    assert joined.times.request_id == "req-1-2"


@pytest.mark.parametrize("missing", ["queue_s", "prefill_s", "decode_s"])
def test_times_that_are_not_whole_join_nothing(missing: str) -> None:
    values: dict[str, Any] = {"queue_s": 0.1, "prefill_s": 0.2, "decode_s": 0.9} | {missing: None}
    joiner = Joiner()
    joiner.add_fact(FACT, now_s=0)

    assert joiner.add_times(EngineTimes("req-1", "", preemptions=None, **values), now_s=0) is None


def test_what_waits_is_forgotten_after_a_minute() -> None:
    joiner = Joiner()
    joiner.add_fact(FACT, now_s=0)
    joiner.expire(now_s=WAIT_S - 1)
    before = joiner.waiting
    joiner.expire(now_s=WAIT_S)

    assert (before, joiner.waiting) == (1, 0)


def test_what_waits_is_bounded() -> None:
    joiner = Joiner()
    for number in range(MOST + 10):
        joiner.add_times(EngineTimes(f"req-{number}", "", 0.1, 0.1, 0.1, 0), now_s=0)

    assert joiner.waiting == MOST
