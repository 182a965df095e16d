"""The breaker against growing queues."""

from collections.abc import Callable

from pool.domain.growth import CLOSED, NO_BATCH, NO_STANDARD, GrowthBreaker


def run(
    breaker: GrowthBreaker, pending: Callable[[float], int], *, waiting: int, start_s: float, end_s: float
) -> list[int]:
    stages = []
    now_s = start_s
    while now_s < end_s:
        breaker.observe(pending=pending(now_s), waiting=waiting, limit_ratio=0.15, now_s=now_s)
        stages.append(breaker.stage)
        now_s += 1.0
    return stages


def test_growth_over_ten_minutes_refuses_batch_and_then_standard() -> None:
    breaker = GrowthBreaker(0.0)

    stages = run(breaker, lambda now_s: 20 + int(now_s / 30), waiting=9, start_s=0.0, end_s=900.0)

    assert stages[584] == CLOSED
    assert breaker.stage == NO_STANDARD
    assert stages.index(NO_STANDARD) - stages.index(NO_BATCH) >= 120
    assert 585 <= stages.index(NO_BATCH) <= 601
    assert breaker.describe(900.0)["reason"] == "pending_grows"


def test_it_closes_stage_by_stage_when_pending_falls() -> None:
    breaker = GrowthBreaker(0.0)
    run(breaker, lambda now_s: 20 + int(now_s / 30), waiting=9, start_s=0.0, end_s=900.0)

    stages = run(breaker, lambda now_s: 5, waiting=0, start_s=900.0, end_s=1400.0)

    assert stages[60] == NO_STANDARD
    assert stages[-1] == CLOSED
    assert NO_BATCH in stages
    assert breaker.reason == "pending_fell"


def test_a_steady_load_opens_nothing() -> None:
    breaker = GrowthBreaker(0.0)

    assert set(run(breaker, lambda now_s: 100, waiting=50, start_s=0.0, end_s=2000.0)) == {CLOSED}
    assert breaker.growth_ratio == 0.0


def test_growth_without_a_queue_opens_nothing() -> None:
    breaker = GrowthBreaker(0.0)

    assert set(run(breaker, lambda now_s: int(now_s), waiting=8, start_s=0.0, end_s=2000.0)) == {CLOSED}


def test_a_burst_of_a_minute_opens_nothing() -> None:
    breaker = GrowthBreaker(0.0)
    run(breaker, lambda now_s: 10, waiting=0, start_s=0.0, end_s=1000.0)

    assert set(run(breaker, lambda now_s: 90, waiting=60, start_s=1000.0, end_s=1060.0)) == {CLOSED}


def test_growth_between_exit_and_entry_holds_the_stage() -> None:
    breaker = GrowthBreaker(0.0)
    run(breaker, lambda now_s: 20 + int(now_s / 30), waiting=9, start_s=0.0, end_s=640.0)
    assert breaker.stage == NO_BATCH

    breaker._samples.clear()
    breaker._samples.extend([100] * 20 + [113] * 20)
    breaker._crowded_samples = 0
    breaker.observe(pending=113, waiting=6, limit_ratio=0.15, now_s=700.0)

    assert breaker.stage == NO_BATCH
    assert breaker._good_since_s is None


def test_the_first_ten_minutes_are_unknown() -> None:
    breaker = GrowthBreaker(0.0)

    run(breaker, lambda now_s: int(now_s), waiting=90, start_s=0.0, end_s=580.0)

    assert breaker.growth_ratio is None
    assert breaker.describe(1.0)["growth_ratio"] is None
