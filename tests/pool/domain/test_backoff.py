from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pool.domain.backoff import (
    CRASH_WINDOW,
    FIRST_DELAY,
    MAX_CRASHES,
    MAX_DELAY,
    STABLE_AFTER,
    Failure,
    FailureKind,
    History,
    record_failure,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
CRASH = Failure(FailureKind.TRANSIENT, "engine_died", "died")
UNPLACED = Failure(FailureKind.UNPLACED, "no_place", "no room")
PERMANENT = Failure(FailureKind.PERMANENT, "bad_argument", "unknown option")


def test_failed_starts_wait_longer_each_time_and_end() -> None:
    first, first_at = record_failure(History(), CRASH, ready_for=None, now=T0)
    second, second_at = record_failure(first, CRASH, ready_for=None, now=T0)
    third, third_at = record_failure(second, CRASH, ready_for=None, now=T0)

    assert first_at == T0 + FIRST_DELAY
    assert second_at == T0 + FIRST_DELAY * 3
    assert third_at is None
    assert third.exhausted


def test_the_first_crash_restarts_at_once_and_the_second_waits() -> None:
    first, first_at = record_failure(History(), CRASH, ready_for=STABLE_AFTER, now=T0)
    _, second_at = record_failure(first, CRASH, ready_for=STABLE_AFTER, now=T0)

    assert first_at == T0
    assert second_at == T0 + FIRST_DELAY


def test_a_crash_loop_is_given_up() -> None:
    history, retry_at = History(), None
    for minute in range(MAX_CRASHES):
        now = T0 + timedelta(minutes=3 * minute)
        history, retry_at = record_failure(history, CRASH, ready_for=STABLE_AFTER, now=now)

    assert history.exhausted
    assert retry_at is None


def test_rare_crashes_are_forgotten() -> None:
    history = History()
    for hour in range(5):
        now = T0 + timedelta(hours=hour)
        history, retry_at = record_failure(history, CRASH, ready_for=CRASH_WINDOW, now=now)
        assert retry_at == now

    assert len(history.crashes_at) == 1


def test_a_stable_time_clears_failed_starts_and_a_short_one_does_not() -> None:
    history = History(failed_starts=2)

    stable, _ = record_failure(history, CRASH, ready_for=STABLE_AFTER, now=T0)
    short, short_at = record_failure(history, CRASH, ready_for=timedelta(seconds=1), now=T0)

    assert stable.failed_starts == 0
    assert short.failed_starts == 2
    assert short_at == T0 + FIRST_DELAY * 3


def test_the_delay_is_bounded() -> None:
    history = History(failed_starts=2, crashes_at=(T0,))

    _, retry_at = record_failure(history, CRASH, ready_for=timedelta(0), now=T0)

    assert retry_at == T0 + FIRST_DELAY * 9
    assert FIRST_DELAY * 9 < MAX_DELAY


def test_a_missing_place_is_no_failed_start() -> None:
    assert record_failure(History(2), UNPLACED, ready_for=None, now=T0) == (History(2), T0 + MAX_DELAY)


def test_a_permanent_failure_has_no_next_try() -> None:
    _, retry_at = record_failure(History(), PERMANENT, ready_for=None, now=T0)

    assert retry_at is None
