"""The limit of a lane on a replica."""

from pool.domain.concurrency import Concurrency


def make_limit(start: int = 8, *, ceiling: int | None = 64, adaptive: bool = True) -> Concurrency:
    return Concurrency(start, ceiling=ceiling, target_s=0.3, adaptive=adaptive)


def note(limit: Concurrency, ttft_s: float, *, times: int = 1, own_s: float = 0.0, at_s: float = 1.0) -> None:
    for _ in range(times):
        limit.note_ttft(
            ttft_s, own_s=own_s, in_flight=int(limit.limit), admitted_at_s=at_s, now_s=at_s + ttft_s
        )


def test_it_starts_within_the_slots() -> None:
    assert make_limit(32, ceiling=8).limit == 8
    assert make_limit(32, ceiling=None).limit == 32


def test_it_doubles_in_a_round_of_good_samples_at_first() -> None:
    limit = make_limit(2)

    note(limit, 0.1, times=2)

    assert limit.limit == 4
    assert limit.reason == "within_target"


def test_it_stops_at_the_slots() -> None:
    limit = make_limit(4, ceiling=6)

    note(limit, 0.1, times=20)

    assert limit.limit == 6
    assert limit.reason == "all_slots"


def test_it_falls_when_the_median_is_over_the_target() -> None:
    limit = make_limit(10)

    note(limit, 0.5, times=7)
    assert limit.limit == 10
    note(limit, 0.5)

    assert limit.limit == 8
    assert limit.reason == "over_target"


def test_one_slow_sample_among_good_ones_changes_nothing() -> None:
    limit = make_limit(10, ceiling=10)

    note(limit, 0.1, times=9)
    note(limit, 30.0)

    assert limit.limit == 10


def test_after_a_fall_it_grows_by_one_a_round() -> None:
    limit = make_limit(10)
    note(limit, 0.5, times=8)

    note(limit, 0.1, times=8, at_s=5.0)

    assert 8.9 < limit.limit < 9.1


def test_it_never_falls_below_one() -> None:
    limit = make_limit(2)

    for round_number in range(20):
        note(limit, 5.0, times=8, at_s=10.0 * round_number)

    assert limit.limit == 1


def test_samples_of_requests_admitted_under_an_older_limit_do_not_count() -> None:
    limit = make_limit(10)
    note(limit, 0.5, times=8, at_s=1.0)

    note(limit, 0.5, times=20, at_s=1.0)

    assert limit.limit == 8


def test_a_limit_that_holds_nobody_back_stays() -> None:
    limit = make_limit(10)

    for _ in range(50):
        limit.note_ttft(9.0, own_s=0.0, in_flight=3, admitted_at_s=1.0, now_s=10.0)
        limit.note_ttft(0.1, own_s=0.0, in_flight=3, admitted_at_s=1.0, now_s=10.0)

    assert limit.limit == 10


def test_a_long_prompt_is_held_to_twice_its_own_prefill() -> None:
    limit = make_limit(2)

    note(limit, 7.9, times=2, own_s=4.0)
    assert limit.limit == 4
    note(limit, 9.0, times=16, own_s=4.0, at_s=20.0)

    assert limit.limit < 4


def test_a_fixed_limit_does_not_move() -> None:
    limit = make_limit(10, adaptive=False)

    note(limit, 9.0, times=50)

    assert limit.limit == 10


def test_fewer_slots_lower_it() -> None:
    limit = make_limit(10)

    limit.set_bounds(ceiling=4, target_s=0.5)

    assert (limit.limit, limit.target_s) == (4, 0.5)
    limit.set_bounds(ceiling=None, target_s=0.5)
    note(limit, 0.1)
    assert limit.limit == 5


def test_it_finds_the_level_at_which_the_target_holds() -> None:
    """An engine whose TTFT grows by 20 ms per request in flight holds 300 ms with 15."""
    limit = make_limit(32, ceiling=256)
    seen = []
    for step in range(4000):
        in_flight = int(limit.limit)
        limit.note_ttft(
            0.02 * in_flight, own_s=0.0, in_flight=in_flight, admitted_at_s=step * 1.0, now_s=step + 0.5
        )
        seen.append(limit.limit)

    assert min(seen[1000:]) >= 11
    assert max(seen[1000:]) <= 18
