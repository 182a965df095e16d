"""Burn rates over two windows, budgets, and what too few requests say."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.domain.alerting import Level, Reading
from pool.domain.burn import Count, budget_left, burn_rate, read_burn

HOUR = timedelta(hours=1)
CALM = Count(10_000, 0)


def read(counts: dict[timedelta, Count], *, default: Count = CALM) -> Reading:
    return read_burn(lambda span: counts.get(span, default), 0.01, min_samples=100)


def test_a_rate_of_one_uses_the_budget_up_in_its_period() -> None:
    assert burn_rate(Count(1000, 10), 0.01) == pytest.approx(1.0)
    assert burn_rate(Count(1000, 144), 0.01) == pytest.approx(14.4)


def test_no_requests_have_no_rate_and_no_budget() -> None:
    assert burn_rate(Count(0, 0), 0.01) is None
    assert budget_left(Count(0, 0), 0.01) is None


def test_a_budget_may_be_overdrawn() -> None:
    assert budget_left(Count(1000, 4), 0.01) == pytest.approx(0.6)
    assert budget_left(Count(1000, 20), 0.01) == pytest.approx(-1.0)


def test_both_windows_must_burn() -> None:
    long_only = read({HOUR: Count(10_000, 2000)})
    both = read({HOUR: Count(10_000, 2000), timedelta(minutes=5): Count(1000, 200)})

    assert long_only.by_level[Level.RED] == 0.0
    assert both.by_level[Level.RED] == pytest.approx(20.0)


def test_one_failed_request_among_few_is_no_burn() -> None:
    reading = read({}, default=Count(110, 2))

    assert reading.by_level == {Level.RED: 0.0, Level.ORANGE: 0.0, Level.YELLOW: 0.0}


def test_too_few_requests_are_no_verdict() -> None:
    assert read({}, default=Count(99, 99)) == Reading(None, 99, "few")
    assert read({}, default=Count(0, 0)) == Reading(None, 0, "absent")


def test_a_silent_short_window_says_nothing_of_its_level() -> None:
    reading = read({timedelta(minutes=5): Count(0, 0)}, default=Count(10_000, 500))

    assert Level.RED not in reading.by_level
    assert reading.by_level[Level.ORANGE] == pytest.approx(5.0)
