from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain.breaker import (
    AT_ONCE,
    FAILURES_IN_A_ROW,
    FORGET_S,
    LONGEST_OPEN_S,
    SCORE_AFTER_TRIAL,
    SCORE_HALF_LIFE_S,
    SHORTEST_HUNG_S,
    SHORTEST_OPEN_S,
    TRIAL_LEASE_S,
    Breaker,
    Fault,
    link_breakers,
    read_fault,
)

T0 = 1_000.0


def make_open(fault: Fault = Fault.CONNECT, *, now_s: float = T0) -> Breaker:
    breaker = Breaker()
    breaker.note_failure(fault, now_s)
    return breaker


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (200, b"", None),
        (400, b"", None),
        (404, b"", None),
        (422, b"", None),
        (429, b"", None),
        (501, b"not implemented", None),
        (302, b"", Fault.MISDIRECTED),
        (401, b"", Fault.MISDIRECTED),
        (403, b"", Fault.MISDIRECTED),
        (500, b"a bug", Fault.SERVER_ERROR),
        (500, b"EngineCore encountered an issue.", Fault.DEAD_CORE),
        (502, b"", Fault.SERVER_ERROR),
        (503, b"The engine is currently busy", Fault.UNAVAILABLE),
    ],
)
def test_fc15_only_the_engines_faults_are_read_as_faults(
    status: int, body: bytes, fault: Fault | None
) -> None:
    assert read_fault(status, body) is fault


@pytest.mark.parametrize("fault", sorted(AT_ONCE))
def test_fc02_what_no_request_explains_opens_at_once(fault: Fault) -> None:
    breaker = make_open(fault)

    assert not breaker.allows(T0)
    assert breaker.describe(T0)["reason"] == fault


@pytest.mark.parametrize("fault", sorted(set(Fault) - AT_ONCE))
def test_fc15_other_faults_open_after_some_in_a_row(fault: Fault) -> None:
    breaker = Breaker()

    for _ in range(FAILURES_IN_A_ROW - 1):
        breaker.note_failure(fault, T0)
        assert breaker.allows(T0)
    breaker.note_failure(fault, T0)

    assert not breaker.allows(T0)


def test_fc15_a_success_between_failures_starts_the_row_again() -> None:
    breaker = Breaker()

    for _ in range(5):
        breaker.note_failure(Fault.SERVER_ERROR, T0)
        breaker.note_failure(Fault.SERVER_ERROR, T0)
        for _ in range(20):
            breaker.note_success(T0)

    assert breaker.closed
    assert breaker.counts == {"server_error": 10}


def test_fc15_a_replica_that_fails_every_other_request_is_found_too() -> None:
    breaker = Breaker()
    requests = 0

    while breaker.closed:
        breaker.note_success(T0)
        breaker.note_failure(Fault.BROKEN, T0)
        requests += 2

    assert 20 < requests < 200


def test_a_few_failures_among_many_successes_never_open() -> None:
    breaker = Breaker()

    for number in range(2_000):
        if number % 5:
            breaker.note_success(T0)
        else:
            breaker.note_failure(Fault.SERVER_ERROR, T0)

    assert breaker.closed


def test_half_open_gives_one_trial_and_a_success_closes() -> None:
    breaker = make_open()
    later = T0 + SHORTEST_OPEN_S

    assert breaker.describe(later)["phase"] == "half_open"
    assert breaker.allows(later)
    assert breaker.note_sent(later)
    assert not breaker.allows(later)

    breaker.note_success(later + 0.1)
    assert breaker.allows(later + 0.1)
    assert not breaker.note_sent(later + 0.1)
    assert breaker.describe(later + 0.1)["phase"] == "closed"


def test_a_trial_that_fails_opens_for_twice_as_long_up_to_a_bound() -> None:
    breaker = make_open()
    now_s, waits = T0, []

    for _ in range(8):
        left_s = breaker.describe(now_s)["left_s"]
        waits.append(left_s)
        now_s += left_s
        breaker.note_sent(now_s)
        breaker.note_failure(Fault.CONNECT, now_s)

    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert breaker.describe(now_s)["since_s"] == pytest.approx(now_s - T0)


def test_an_old_request_says_nothing_while_it_is_open() -> None:
    breaker = make_open()

    breaker.note_success(T0 + 0.1)
    breaker.note_failure(Fault.LOST, T0 + 0.2)

    assert not breaker.allows(T0 + 0.3)
    assert breaker.describe(T0 + 0.3)["left_s"] == pytest.approx(0.2)


@pytest.mark.parametrize("end", [Breaker.note_first_byte, Breaker.drop_trial])
def test_the_next_trial_starts_when_the_first_is_answered_or_left(end: object) -> None:
    breaker = make_open()
    later = T0 + SHORTEST_OPEN_S
    breaker.note_sent(later)

    end(breaker)  # type: ignore[operator]

    assert breaker.allows(later)
    assert not breaker.closed


def test_a_trial_of_the_last_replica_counts_also_after_its_first_byte() -> None:
    only = make_open()
    link_breakers([(only,)])
    only.note_sent(T0)

    only.note_first_byte()
    only.note_success(T0 + 0.1)

    assert only.closed


def test_a_trial_whose_end_nobody_told_is_forgotten() -> None:
    breaker = make_open()
    breaker.note_sent(T0 + 1)

    assert not breaker.allows(T0 + 1 + TRIAL_LEASE_S - 0.1)
    assert breaker.allows(T0 + 1 + TRIAL_LEASE_S)


def test_a_replica_that_flaps_is_passed_over_for_longer_each_time() -> None:
    breaker = make_open()
    breaker.note_sent(T0 + 1)
    breaker.note_success(T0 + 1)

    breaker.note_failure(Fault.CONNECT, T0 + 2)
    assert breaker.describe(T0 + 2)["left_s"] == 2 * SHORTEST_OPEN_S

    breaker.note_success(T0 + 4)
    breaker.note_failure(Fault.CONNECT, T0 + 5 + FORGET_S)
    assert breaker.describe(T0 + 5 + FORGET_S)["left_s"] == SHORTEST_OPEN_S


def test_a_closed_breaker_keeps_part_of_its_bad_score_and_time_forgives_it() -> None:
    breaker = Breaker()
    while breaker.closed:
        breaker.note_success(T0)
        breaker.note_failure(Fault.BROKEN, T0)
    breaker.note_success(T0 + LONGEST_OPEN_S)

    assert breaker.error_score == SCORE_AFTER_TRIAL
    breaker.fade(SCORE_HALF_LIFE_S)
    assert breaker.error_score == SCORE_AFTER_TRIAL / 2
    breaker.fade(100 * SCORE_HALF_LIFE_S)
    assert breaker.error_score == 0.0
    breaker.fade(1.0)
    assert breaker.error_score == 0.0


def test_fc01_a_hung_engine_gets_no_caller_while_its_requests_wait_there() -> None:
    breaker = Breaker()

    for second in range(100):
        breaker.note_hung(T0 + second)
        assert not breaker.allows(T0 + second)

    assert breaker.describe(T0)["reason"] == "hung"
    assert breaker.counts == {"hung": 3}


def test_fc01_a_byte_from_a_hung_engine_takes_it_back() -> None:
    breaker = Breaker()
    breaker.note_hung(T0)

    breaker.note_progress(T0 + 1)

    assert breaker.allows(T0 + 1)


def test_a_hang_outweighs_an_opening_for_another_reason() -> None:
    breaker = make_open()

    breaker.note_hung(T0)

    assert breaker.describe(T0)["left_s"] == 2 * SHORTEST_HUNG_S


def test_a_hung_engine_that_answers_is_taken_back_at_once() -> None:
    breaker = Breaker()
    breaker.note_hung(T0)

    breaker.note_success(T0 + 1)

    assert breaker.closed


@pytest.mark.parametrize("breaker", [Breaker(), make_open()])
def test_progress_means_nothing_to_a_breaker_that_is_not_hung(breaker: Breaker) -> None:
    before = breaker.closed

    breaker.note_progress(T0)

    assert breaker.closed is before


def test_other_processes_hear_of_an_opening_and_of_its_end() -> None:
    mine, theirs = make_open(Fault.LOST), Breaker()
    opinion = mine.share_opinion(T0 + 0.1)
    assert opinion == {"reason": "lost", "age_s": 0.1, "left_s": 0.4}

    theirs.hear_opinions([opinion], T0 + 0.1)
    assert not theirs.allows(T0 + 0.4)
    assert theirs.describe(T0 + 0.4)["heard"]
    assert theirs.describe(T0 + 0.4)["reason"] == "lost"
    assert theirs.allows(T0 + 0.5)

    theirs.hear_opinions([], T0 + 0.5)
    assert theirs.closed


def test_an_opinion_that_was_heard_is_not_told_on() -> None:
    theirs = Breaker()
    theirs.hear_opinions([{"reason": "lost", "age_s": 0.0, "left_s": 5.0}], T0)

    assert theirs.share_opinion(T0) is None
    assert Breaker().share_opinion(T0) is None
    assert make_open().share_opinion(T0 + SHORTEST_OPEN_S) is None


def test_an_own_success_that_is_newer_outweighs_what_is_heard() -> None:
    breaker = Breaker()
    breaker.note_success(T0)

    breaker.hear_opinions([{"reason": "connect", "age_s": 2.0, "left_s": 5.0}], T0)
    assert breaker.closed

    breaker.hear_opinions([{"reason": "connect", "age_s": 0.1, "left_s": 5.0}], T0 + 1)
    assert not breaker.closed


def test_the_own_opinion_stays_when_others_say_more_or_nothing() -> None:
    breaker = make_open()

    breaker.hear_opinions([{"reason": "hung", "age_s": 0.0, "left_s": 50.0}], T0)
    breaker.hear_opinions([], T0)

    assert breaker.describe(T0)["reason"] == "connect"
    assert breaker.allows(T0 + SHORTEST_OPEN_S)


def test_a_failed_trial_makes_a_heard_opinion_an_own_one() -> None:
    breaker = Breaker()
    breaker.hear_opinions([{"reason": "connect", "age_s": 0.0, "left_s": 0.2}], T0)

    breaker.note_sent(T0 + 0.2)
    breaker.note_failure(Fault.CONNECT, T0 + 0.3)

    assert breaker.share_opinion(T0 + 0.3) == {"reason": "connect", "age_s": 0.0, "left_s": 0.5}


def test_an_open_breaker_stays_so_while_another_replica_serves() -> None:
    sound, failing = Breaker(), make_open()
    link_breakers([(sound, failing)])

    assert not failing.allows(T0)
    assert failing.allows(T0 + SHORTEST_OPEN_S)


def test_fc15_the_last_replica_is_limited_to_trials_and_never_off() -> None:
    only = make_open()
    link_breakers([(only,)])

    assert only.allows(T0)
    only.note_sent(T0)
    assert not only.allows(T0)

    only.note_failure(Fault.SERVER_ERROR, T0 + 0.1)
    assert only.allows(T0 + 0.1)
    only.note_sent(T0 + 0.1)
    only.note_success(T0 + 0.2)
    assert only.closed


def test_fc15_replicas_that_are_all_open_get_a_trial_each() -> None:
    replicas = (make_open(), make_open())
    link_breakers([replicas])

    assert all(breaker.allows(T0) for breaker in replicas)


def test_one_that_may_be_tried_is_enough() -> None:
    early, late = make_open(), make_open(now_s=T0 + 0.4)
    link_breakers([(early, late)])

    assert early.allows(T0 + SHORTEST_OPEN_S)
    assert not late.allows(T0 + SHORTEST_OPEN_S)


def test_the_last_replica_of_any_lane_is_never_off() -> None:
    short, every = Breaker(), make_open()
    link_breakers([(short, every), (every,)])

    assert every.allows(T0)

    link_breakers([(short, every)])
    assert not every.allows(T0)


def test_years_of_failing_keep_the_numbers_finite() -> None:
    breaker = make_open()

    for number in range(5_000):
        breaker.note_failure(Fault.CONNECT, T0 + 10.0 * number)

    assert breaker.describe(T0 + 49_990)["left_s"] == LONGEST_OPEN_S


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "byte", "dropped", "ok", "hung", "moved", *Fault]), st.floats(0.0, 5.0)
    ),
    max_size=60,
)


def take_step(breaker: Breaker, step: str, now_s: float) -> None:
    if isinstance(step, Fault):
        breaker.note_failure(step, now_s)
    elif step == "sent" and breaker.allows(now_s):
        if breaker.note_sent(now_s):
            assert not breaker.allows(now_s)
    elif step in ("byte", "dropped"):
        (breaker.note_first_byte if step == "byte" else breaker.drop_trial)()
    elif step in ("ok", "hung", "moved"):
        {"ok": breaker.note_success, "hung": breaker.note_hung, "moved": breaker.note_progress}[step](now_s)


@given(STEPS)
def test_whatever_happens_the_last_replica_is_tried_again_and_one_success_closes(
    steps: list[tuple[str, float]],
) -> None:
    breaker, now_s = Breaker(), T0
    link_breakers([(breaker,)])
    for step, passed_s in steps:
        now_s += passed_s
        take_step(breaker, step, now_s)
        assert 0.0 <= breaker.error_score < 1.0

    now_s += TRIAL_LEASE_S
    assert breaker.allows(now_s)
    breaker.note_sent(now_s)
    breaker.note_success(now_s)
    assert breaker.closed
