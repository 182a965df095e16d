from __future__ import annotations

from datetime import timedelta

from pool.domain.startup import BASE, WARM_UP_MARGIN, load_budget, warm_up_budget


def test_fc17_the_budget_grows_with_the_weights() -> None:
    assert load_budget(0) == BASE
    assert load_budget(100 * 2**30) == BASE + timedelta(seconds=2048)


def test_fc17_known_starts_set_the_budget_and_never_below_the_base() -> None:
    slow = [timedelta(minutes=9), timedelta(minutes=10)]

    assert load_budget(0, past=slow) == timedelta(minutes=30)
    assert load_budget(100 * 2**30, past=[timedelta(seconds=5)]) == BASE


def test_the_warm_up_has_a_margin_over_its_own_budget() -> None:
    assert warm_up_budget(timedelta(seconds=20)) == timedelta(seconds=20) + WARM_UP_MARGIN
