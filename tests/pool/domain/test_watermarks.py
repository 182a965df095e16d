"""Levels of KV use."""

import math

import pytest

from pool.domain.watermarks import NO_LONG, NORMAL, SHORT_ONLY, WARN, Watermark, read_use

MARKS = (0.70, 0.85, 0.95)


def observe(mark: Watermark, ratio: float | None, now_s: float) -> int:
    mark.observe(ratio, source="engine", marks=MARKS, now_s=now_s)
    return mark.level


@pytest.mark.parametrize(
    ("ratio", "level"),
    [(0.0, NORMAL), (0.699, NORMAL), (0.70, WARN), (0.85, NO_LONG), (0.949, NO_LONG), (0.95, SHORT_ONLY)],
)
def test_a_level_is_entered_at_its_mark(ratio: float, level: int) -> None:
    assert observe(Watermark(0.0), ratio, 1.0) == level


def test_a_level_is_left_five_points_lower_and_after_a_hold() -> None:
    mark = Watermark(0.0)
    observe(mark, 0.86, 1.0)

    assert observe(mark, 0.81, 10.0) == NO_LONG
    assert observe(mark, 0.79, 11.0) == NO_LONG
    assert observe(mark, 0.79, 15.9) == NO_LONG
    assert observe(mark, 0.79, 16.0) == WARN
    assert mark.describe(17.0) == {
        "level": "warn", "reason": "use_fell", "since_s": 1.0, "used_ratio": 0.79, "source": "engine",
    }  # fmt: skip


def test_a_use_that_swings_around_the_exit_holds_the_level() -> None:
    mark = Watermark(0.0)
    observe(mark, 0.86, 0.0)

    levels = {observe(mark, 0.79 if step % 2 else 0.82, 1.0 + step) for step in range(50)}

    assert levels == {NO_LONG}


def test_a_fall_to_nothing_leaves_all_levels_at_once() -> None:
    mark = Watermark(0.0)
    observe(mark, 0.99, 0.0)
    observe(mark, 0.1, 1.0)

    assert observe(mark, 0.1, 6.0) == NORMAL


def test_an_unknown_use_keeps_the_level_for_a_minute() -> None:  # FC-29
    mark = Watermark(0.0)
    observe(mark, 0.9, 0.0)

    assert observe(mark, None, 59.0) == NO_LONG
    assert observe(mark, None, 61.0) == NORMAL
    assert mark.reason == "use_unknown"
    assert mark.describe(61.0)["used_ratio"] is None


@pytest.mark.parametrize(
    ("gauge", "at_s", "kv_tokens", "expected"),
    [
        (0.5, 99.0, 1000, (0.5, "engine")),
        (0.5, 96.0, 1000, (0.9, "estimate")),
        (None, 99.0, 1000, (0.9, "estimate")),
        (math.nan, 99.0, 1000, (0.9, "estimate")),
        (math.inf, 99.0, None, (None, "unknown")),
        (0.5, None, None, (None, "unknown")),
        (0.0, 99.0, None, (0.0, "engine")),
    ],
)
def test_a_gauge_that_says_nothing_is_replaced_by_what_is_in_flight(
    gauge: float | None, at_s: float | None, kv_tokens: int | None, expected: tuple[float | None, str]
) -> None:  # FC-29
    assert read_use(gauge, at_s, own_tokens=900, kv_tokens=kv_tokens, now_s=100.0) == expected
