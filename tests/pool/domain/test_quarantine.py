from __future__ import annotations

import pytest

from pool.domain.quarantine import (
    ALONE_S,
    CAPACITY,
    IN_COMPANY_S,
    SHARED,
    SUSPECT_S,
    WHOLE_BYTES,
    Quarantine,
    hash_request,
)

T0 = 1_000.0


def make_arrest(*requests: str, now_s: float = T0) -> Quarantine:
    quarantine = Quarantine()
    for engine in ("a.1", "b.1"):
        for request in requests or ("poison",):
            quarantine.note_death(request, engine, now_s)
    return quarantine


def test_nothing_is_looked_at_while_nothing_died() -> None:
    quarantine = Quarantine()

    assert not quarantine.active
    assert quarantine.refuses("any", T0) == 0.0
    quarantine.note_completed("any", T0)


def test_fc14_a_request_at_two_deaths_is_refused() -> None:
    quarantine = Quarantine()

    assert not quarantine.note_death("poison", "a.1", T0)
    assert quarantine.active
    assert quarantine.refuses("poison", T0) == 0.0
    assert quarantine.note_death("poison", "b.1", T0)

    assert quarantine.refuses("poison", T0 + 1) == ALONE_S - 1
    assert quarantine.describe(T0 + 1) == {
        "suspects": 0,
        "quarantined": 1,
        "refused": 1,
        "longest_left_s": ALONE_S - 1,
    }


def test_one_death_counts_once() -> None:
    quarantine = Quarantine()

    for _ in range(5):
        assert not quarantine.note_death("twice there", "a.1", T0)

    for _ in range(2):
        assert quarantine.note_death("twice there", "b.1", T0)
    assert quarantine.refuses("twice there", T0) == ALONE_S


def test_a_new_generation_of_the_same_replica_is_another_engine() -> None:
    quarantine = Quarantine()
    quarantine.note_death("poison", "a.1", T0)

    assert quarantine.note_death("poison", "a.2", T0 + 60)


def test_who_completes_between_two_deaths_is_innocent() -> None:
    quarantine = Quarantine()
    quarantine.note_death("innocent", "a.1", T0)

    quarantine.note_completed("innocent", T0 + 1)

    assert not quarantine.active
    assert not quarantine.note_death("innocent", "b.1", T0 + 2)


def test_an_old_copy_that_completes_does_not_lift_an_arrest() -> None:
    quarantine = make_arrest()

    quarantine.note_completed("poison", T0 + 1)

    assert quarantine.refuses("poison", T0 + 1)


def test_companions_of_the_poison_are_held_for_a_short_time_only() -> None:
    quarantine = make_arrest("poison", "innocent", "other")

    assert quarantine.refuses("poison", T0) == IN_COMPANY_S
    assert quarantine.refuses("innocent", T0 + IN_COMPANY_S) == 0.0


def test_who_is_there_at_a_third_death_alone_is_held_for_long() -> None:
    quarantine = make_arrest("poison", "innocent")
    later = T0 + IN_COMPANY_S
    quarantine.note_completed("innocent", later)

    quarantine.note_death("poison", "c.1", later)

    assert quarantine.refuses("poison", later) == ALONE_S


def test_who_is_there_at_a_third_death_in_company_is_held_for_longer() -> None:
    quarantine = make_arrest("poison", "innocent")

    for request in ("poison", "innocent"):
        quarantine.note_death(request, "c.1", T0 + IN_COMPANY_S)

    assert IN_COMPANY_S < quarantine.refuses("poison", T0 + IN_COMPANY_S) < ALONE_S


def test_a_suspicion_is_dropped_after_a_while() -> None:
    quarantine = Quarantine()
    quarantine.note_death("suspect", "a.1", T0)

    quarantine.sweep(T0 + SUSPECT_S - 1)
    assert quarantine.active
    quarantine.sweep(T0 + SUSPECT_S)

    assert not quarantine.active


def test_an_arrest_outlives_the_suspicion_and_ends() -> None:
    quarantine = make_arrest()

    quarantine.sweep(T0 + SUSPECT_S)
    assert quarantine.refuses("poison", T0 + SUSPECT_S)
    quarantine.sweep(T0 + ALONE_S)

    assert not quarantine.active
    assert quarantine.describe(T0 + ALONE_S)["longest_left_s"] == 0.0


def test_the_memory_is_bounded_and_the_oldest_goes_first() -> None:
    quarantine = make_arrest("first")

    for number in range(CAPACITY):
        quarantine.note_death(f"r{number}", "c.1", T0)

    assert quarantine.describe(T0)["suspects"] == CAPACITY
    assert quarantine.refuses("first", T0) == 0.0


def test_other_processes_refuse_what_is_shared_and_do_not_tell_it_on() -> None:
    mine, theirs = make_arrest(), Quarantine()

    theirs.hear([mine.share(T0 + 1)], T0 + 1)

    assert theirs.refuses("poison", T0 + 2) == ALONE_S - 2
    assert theirs.share(T0 + 2) == {}
    mine.hear([{"poison": 5_000.0}], T0 + 2)
    assert mine.refuses("poison", T0 + 2) == ALONE_S - 2


def test_what_others_say_of_an_own_suspect_is_believed() -> None:
    quarantine = Quarantine()
    quarantine.note_death("poison", "a.1", T0)

    quarantine.hear([{"poison": 30.0}], T0)
    assert quarantine.refuses("poison", T0) == 30.0

    assert quarantine.note_death("poison", "b.1", T0 + 1)
    assert quarantine.share(T0 + 1) == {"poison": ALONE_S}


def test_what_is_shared_and_heard_is_bounded() -> None:
    quarantine = make_arrest(*(f"r{number}" for number in range(2 * SHARED)))
    assert len(quarantine.share(T0)) == SHARED

    quarantine.hear(({f"x{one}.{two}": 9.0 for two in range(SHARED)} for one in range(9)), T0)

    assert quarantine.describe(T0)["quarantined"] == CAPACITY


def test_a_hash_tells_requests_apart_by_path_and_body() -> None:
    one = hash_request(b"/v1/completions", b'{"a":1}')

    assert len(one) == 16
    assert one == hash_request(b"/v1/completions", bytearray(b'{"a":1}'))
    assert one != hash_request(b"/v1/chat/completions", b'{"a":1}')
    assert one != hash_request(b"/v1/completions", b'{"a":2}')


@pytest.mark.parametrize("place", [0, WHOLE_BYTES, -1])
def test_a_large_body_is_hashed_by_its_ends_samples_and_length(place: int) -> None:
    body = bytearray(3 * WHOLE_BYTES)
    before = hash_request(b"/", body)

    body[place] = 1

    assert hash_request(b"/", body) != before
    assert hash_request(b"/", bytes(3 * WHOLE_BYTES + 1)) != before
