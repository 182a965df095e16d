"""What a request takes of the limits of its key, lane and model, in one process and without Redis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool.domain.gateway_settings import LaneSettings, ModelSettings
from pool.domain.routing_table import LaneRoute
from pool.gateway.ledger import Answer, Entry
from pool.gateway.limits import Charge, LeaseMissing, Limits
from pool.gateway.refusals import RateLimited
from tests.pool.gateway.fleet import KEY, MODEL, Model

SHORT_LIMITED = replace(
    MODEL, lanes=(LaneRoute("short", 4096, LaneSettings(requests_per_min=2)), LaneRoute("long", None))
)


def check(
    limits: Limits, *, requests: int | None = None, tokens: int | None = None, of: int = 1, now_s: float = 0.0
) -> Charge | None:
    """One request of a key with these limits. The key is another object each time, as after a new table."""
    key = replace(KEY, requests_per_min=requests, tokens_per_min=tokens)
    return limits.check(key, MODEL, "short", of, now_s)


def answer(*entries: Entry, in_use: tuple[tuple[str, int], ...] = (), short: tuple[str, ...] = ()) -> Answer:
    return Answer(1, in_use, short, entries)


def make_led(*, processes: int = 2) -> Limits:
    """One that has settled in."""
    limits = Limits(processes=processes, has_ledger=True)
    limits.absorb([], answer(), 0.0)
    limits.count_processes(processes, 2.0)
    return limits


def test_without_a_limit_nothing_is_charged() -> None:
    limits = Limits()

    assert check(limits) is None
    assert not limits.needs_ledger


def test_a_keys_requests_are_limited_and_told_when_to_come_back() -> None:
    limits = Limits()
    for _ in range(3):
        check(limits, requests=3, now_s=10.0)

    with pytest.raises(RateLimited) as refused:
        check(limits, requests=3, now_s=20.0)

    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (
        429,
        "rate_limited",
        51,
    )
    assert "3 requests a minute of the key 'a key'" in refused.value.message
    assert check(limits, requests=3, now_s=71.0) is not None


def test_a_refused_request_takes_nothing_of_any_limit() -> None:
    limits = Limits()
    check(limits, requests=10, tokens=100, of=90)

    with pytest.raises(RateLimited):
        check(limits, requests=10, tokens=100, of=20)

    rows = {row["id"]: row["used_here"] for row in limits.describe(0.0)["limits"]}
    assert sorted(rows.values()) == [1, 90]


def test_a_request_larger_than_the_limit_is_told_so() -> None:
    with pytest.raises(RateLimited, match="needs 101 tokens") as refused:
        check(Limits(has_ledger=True), tokens=100, of=101)

    assert refused.value.retry_after_s == 60
    assert not isinstance(refused.value, LeaseMissing)


def test_lanes_and_models_have_limits_of_their_own() -> None:
    limits = Limits()
    settings = ModelSettings(requests_per_min=3)
    model = replace(SHORT_LIMITED, settings=settings)
    for _ in range(2):
        limits.check(KEY, model, "short", 1, 0.0)

    with pytest.raises(RateLimited, match="lane 'short' of 'm'"):
        limits.check(KEY, model, "short", 1, 0.0)
    limits.check(KEY, model, "long", 1, 0.0)
    with pytest.raises(RateLimited, match="model 'm'"):
        limits.check(KEY, model, "long", 1, 0.0)
    assert limits.check(KEY, Model("other"), "long", 1, 0.0) is None


def test_settling_gives_back_what_was_not_used() -> None:
    limits = Limits()
    charge = check(limits, tokens=100, of=90)
    assert charge is not None

    limits.settle(charge, 30, 5.0)

    assert check(limits, tokens=100, of=70, now_s=6.0) is not None


def test_without_a_count_the_estimate_stands() -> None:
    limits = Limits()
    charge = check(limits, tokens=100, of=90)
    assert charge is not None

    limits.settle(charge, None, 5.0)

    with pytest.raises(RateLimited):
        check(limits, tokens=100, of=11, now_s=6.0)


def test_a_request_that_was_refused_elsewhere_gives_all_back() -> None:
    limits = Limits()
    charge = check(limits, requests=1, tokens=10, of=10)
    assert charge is not None

    limits.give_back(charge, 1.0)

    assert check(limits, requests=1, tokens=10, of=10, now_s=1.0) is not None


def test_a_changed_limit_keeps_what_was_used() -> None:
    limits = Limits()
    for _ in range(4):
        check(limits, requests=4)

    assert check(limits, requests=6) is not None
    with pytest.raises(RateLimited):
        check(limits, requests=5)


def test_without_redis_a_process_has_its_share() -> None:
    limits = Limits(processes=3)
    for _ in range(3):
        check(limits, requests=10)

    with pytest.raises(RateLimited) as refused:
        check(limits, requests=10)

    assert not isinstance(refused.value, LeaseMissing)


def test_a_new_process_takes_less_until_the_others_know_of_it() -> None:
    limits = Limits(processes=2, has_ledger=True)
    check(limits, requests=8)
    with pytest.raises(LeaseMissing):
        check(limits, requests=8)

    limits.absorb([], answer(), 0.0)
    limits.count_processes(2, 0.5)
    assert not limits.is_settled
    limits.count_processes(2, 1.1)

    for _ in range(3):
        check(limits, requests=8, now_s=1.1)
    with pytest.raises(LeaseMissing):
        check(limits, requests=8, now_s=1.1)


def test_a_single_process_settles_at_once() -> None:
    limits = Limits(has_ledger=True)

    limits.absorb([], answer(), 0.0)

    assert limits.is_settled


def test_a_missing_lease_wakes_the_ledger_and_who_waits_is_called() -> None:
    limits, calls = make_led(), []
    limits.wake = lambda: calls.append("wake")
    for _ in range(2):
        check(limits, requests=4, now_s=2.0)
    with pytest.raises(LeaseMissing) as refused:
        check(limits, requests=4, now_s=2.0)
    assert refused.value.retry_after_s == 1
    limits.wait_for_lease(lambda: calls.append("retry"))

    (share,) = limits.collect(2.0)
    limits.absorb([share], answer(Entry(4, 0, None, 0)), 2.0)

    assert calls == ["wake", "wake", "retry"]
    assert not limits.has_waiting
    assert check(limits, requests=4, now_s=2.0) is not None


def test_a_limit_in_use_meets_the_ledger_each_second_and_one_that_runs_short_at_once() -> None:
    limits = make_led()
    check(limits, requests=100, now_s=2.0)
    (share,) = limits.collect(2.0)
    limits.absorb([share], answer(Entry(50, 0, None, 0)), 2.0)

    assert limits.collect(2.5) == []
    assert limits.collect(3.0) == [share]
    for _ in range(40):
        check(limits, requests=100, now_s=3.1)
    assert limits.collect(3.2) == [share]


def test_a_limit_that_another_process_uses_is_entered_and_later_forgotten() -> None:
    limits = make_led()

    limits.absorb([], answer(in_use=(("key:x:r", 90),)), 2.0)
    (share,) = limits.collect(2.0)
    sank = limits.absorb([share], answer(Entry(5, 80, 30.0, 0)), 2.0)

    assert (share.limit, share.cap, sank, share.free_elsewhere_at_s) == (90, 5, True, 32.0)
    share.clear_wishes()
    assert limits.collect(6.0) == []
    assert (share.cap, share.is_leased, limits.describe(6.0)["limits"]) == (45, False, [])


def test_what_is_short_elsewhere_is_looked_at_at_once() -> None:
    limits = make_led()
    limits.absorb([], answer(in_use=(("key:x:r", 90),)), 2.0)
    (share,) = limits.collect(2.0)
    share.clear_wishes()

    limits.absorb([share], answer(Entry(45, 0, None, 0), short=("key:x:r", "key:unknown:r")), 2.0)

    assert limits.collect(2.1) == [share]


def test_when_the_ledger_is_gone_shares_hold_and_nobody_waits_for_it() -> None:
    limits, calls = Limits(processes=2, has_ledger=True), []
    with pytest.raises(LeaseMissing):
        check(limits, requests=4)
    limits.wait_for_lease(lambda: calls.append("retry"))

    limits.note_lost(1.0)

    assert calls == ["retry"]
    for _ in range(2):
        check(limits, requests=4, now_s=1.0)
    with pytest.raises(RateLimited) as refused:
        check(limits, requests=4, now_s=1.0)
    assert not isinstance(refused.value, LeaseMissing)


def test_more_processes_make_smaller_shares() -> None:
    limits = make_led(processes=2)
    check(limits, requests=12, now_s=2.0)

    limits.count_processes(4, 3.0)

    assert limits.describe(3.0)["limits"][0]["cap_here"] == 3


def test_keys_that_are_asked_for_once_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pool.gateway.limits._MOST_KNOWN", 10)
    limits = Limits()
    for number in range(50):
        limits.check(replace(KEY, digest=f"{number:064d}"), MODEL, "short", 1, 0.0)
        limits.absorb([], answer(in_use=((f"key:{number}:r", 5),)), 0.0)
        for share in limits.collect(100.0 + number):
            share.clear_wishes()
        limits.collect(200.0 + number)

    assert len(limits._found) <= 10
    assert len(limits._shares) <= 11
