"""What a replica has to prefill, seen from first bytes."""

import pytest

from pool.domain.prefill import PrefillClock


def make_clock(speed: float = 8000.0) -> PrefillClock:
    clock = PrefillClock()
    clock.add(8000, ahead_tokens=0, now_s=0.0)
    clock.finish(8000, left_tokens=0, now_s=8000 / speed)
    return clock


def test_a_speed_is_assumed_until_the_first_sample() -> None:
    clock = PrefillClock()

    clock.add(8000, ahead_tokens=0, now_s=0.0)

    assert (clock.is_measured, clock.own_s(8000), clock.busy_until_s) == (False, 2.0, 2.0)
    clock.finish(8000, left_tokens=0, now_s=0.1)
    assert (clock.is_measured, clock.own_s(8000)) == (True, 0.1)


def test_the_speed_is_tokens_over_time_busy() -> None:
    assert make_clock().speed_tokens_per_s == 8000.0
    assert make_clock().own_s(4000) == 0.5


def test_a_short_prompt_teaches_nothing() -> None:
    clock = PrefillClock()
    clock.add(100, ahead_tokens=0, now_s=0.0)

    clock.finish(100, left_tokens=0, now_s=0.5)

    assert not clock.is_measured


def test_prompts_that_share_a_step_do_not_look_fast() -> None:
    clock = PrefillClock()
    clock.add(1000, ahead_tokens=0, now_s=0.0)
    clock.add(1000, ahead_tokens=1000, now_s=0.0)

    clock.finish(1000, left_tokens=1000, now_s=0.25)
    clock.finish(1000, left_tokens=0, now_s=0.25)

    assert clock.speed_tokens_per_s == 8000.0


def test_work_ahead_is_a_point_in_time() -> None:
    clock = make_clock()
    clock.add(8000, ahead_tokens=0, now_s=10.0)
    clock.add(4000, ahead_tokens=8000, now_s=10.2)

    assert clock.busy_until_s == pytest.approx(11.5)
    clock.finish(8000, left_tokens=4000, now_s=11.4)
    assert clock.busy_until_s == pytest.approx(11.9, abs=0.05)


def test_a_cached_prefix_that_looks_like_speed_moves_it_little() -> None:
    clock = make_clock()
    clock.add(60_000, ahead_tokens=0, now_s=10.0)

    clock.finish(60_000, left_tokens=0, now_s=10.1)

    assert clock.speed_tokens_per_s == pytest.approx(12_800.0)


def test_a_replica_that_is_never_idle_teaches_too() -> None:
    clock = make_clock(4000.0)
    now_s = 10.0
    clock.add(4000, ahead_tokens=0, now_s=now_s)
    for _ in range(200):
        clock.add(4000, ahead_tokens=4000, now_s=now_s)
        now_s += 0.5
        clock.finish(4000, left_tokens=4000, now_s=now_s)

    assert clock.speed_tokens_per_s == pytest.approx(8000.0, rel=0.02)


def test_a_prompt_that_was_given_up_spoils_the_sample_only() -> None:
    clock = make_clock()
    clock.add(60_000, ahead_tokens=0, now_s=10.0)
    clock.add(8000, ahead_tokens=60_000, now_s=10.0)

    clock.cancel(left_tokens=8000, now_s=11.0)
    assert clock.busy_until_s == pytest.approx(12.0)
    clock.finish(8000, left_tokens=0, now_s=12.0)

    assert clock.speed_tokens_per_s == 8000.0


def test_prefill_that_is_thought_done_counts_as_done() -> None:
    clock = make_clock()
    clock.add(8000, ahead_tokens=0, now_s=10.0)
    clock.add(8000, ahead_tokens=8000, now_s=10.0)

    clock.credit(8000)
    clock.finish(8000, left_tokens=0, now_s=12.0)

    assert clock.speed_tokens_per_s == pytest.approx(8000.0)
