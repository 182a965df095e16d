"""What replicas' prefix caches probably hold."""

import json
from dataclasses import dataclass

import pytest

from pool.domain.affinity import PrefixIndex


@dataclass
class Sent:
    blocks: tuple[int, ...] = ()
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    output_tokens: int = 0


def send(*blocks: int, uncached: int = 0, output: int = 0) -> Sent:
    return Sent(blocks, 128 * len(blocks) + 64, uncached, output)


def test_a_match_ends_at_the_first_unknown_block() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 10_000)

    index.note_sent(cache, send(1, 2, 3), 0.0)

    assert cache.count_match((1, 2, 3, 4)) == 3
    assert cache.count_match((1, 9, 3)) == 1
    assert cache.count_match((9, 2, 3)) == 0
    assert cache.count_match(()) == 0


def test_the_end_of_the_oldest_prompt_is_evicted_first() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 128 * 4)

    index.note_sent(cache, send(1, 2, 3), 0.0)
    index.note_sent(cache, send(8, 9), 1.0)

    assert cache.count_match((1, 2, 3)) == 2
    assert cache.count_match((8, 9)) == 2


def test_use_keeps_blocks() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 128 * 4)

    for blocks in ((1, 2), (8, 9), (1, 2), (6,)):
        index.note_sent(cache, send(*blocks), 0.0)

    assert cache.count_match((1, 2)) == 2
    assert cache.count_match((8, 9)) == 1


def test_all_replicas_together_stay_within_the_bound() -> None:
    index = PrefixIndex(max_blocks=10)
    caches = [index.add(name, 1, 10**9) for name in ("r1", "r2")]

    for number in range(100):
        index.note_sent(caches[number % 2], send(number), 0.0)

    assert index.describe()["blocks"] == 10


def test_an_unknown_capacity_is_a_middling_one() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, None)

    index.note_sent(cache, send(*range(256)), 0.0)

    assert cache.count_match(range(256)) == 256


def test_a_capacity_that_becomes_known_counts() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, None)

    assert index.add("r1", 1, 256) is cache
    index.note_sent(cache, send(1, 2, 3), 0.0)

    assert cache.count_match((1, 2, 3)) == 2


def test_a_new_generation_starts_empty() -> None:
    index = PrefixIndex()
    old = index.add("r1", 1, 10_000)
    index.note_sent(old, send(1, 2), 0.0)

    new = index.add("r1", 2, 10_000)

    assert new.count_match((1, 2)) == 0
    assert old.count_match((1, 2)) == 2


def test_what_is_forgotten_holds_nothing_and_may_still_get_requests() -> None:
    index = PrefixIndex()
    cache, other = index.add("r1", 1, 10_000), index.add("r2", 1, 10_000)
    index.note_sent(cache, send(1, 2, 3), 0.0)
    index.note_sent(other, send(1), 0.0)

    index.forget(cache)
    index.forget(other)

    assert index.find_holder((1, 2, 3)) is None
    assert index.describe()["replicas"] == 0
    index.note_sent(cache, send(1), 1.0)
    assert cache.count_match((1,)) == 1


def test_the_holder_got_the_longest_beginning_last() -> None:
    index = PrefixIndex()
    first, second = index.add("r1", 1, 10_000), index.add("r2", 1, 128 * 3)
    index.note_sent(first, send(1, 2), 0.0)
    index.note_sent(second, send(1), 1.0)

    assert index.find_holder((1, 2, 3)) is first
    assert index.find_holder((1, 7)) is second
    assert index.find_holder((7,)) is None

    index.note_sent(second, send(4, 5, 6), 2.0)

    assert index.find_holder((1,)) is None


def test_eviction_elsewhere_does_not_take_the_holder() -> None:
    index = PrefixIndex()
    small, large = index.add("r1", 1, 128), index.add("r2", 1, 10_000)
    index.note_sent(small, send(1), 0.0)
    index.note_sent(large, send(1), 1.0)

    index.note_sent(small, send(2), 2.0)

    assert index.find_holder((1,)) is large


def test_sent_work_fades() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 10_000)

    index.note_sent(cache, send(1, uncached=900, output=100), 0.0)

    assert cache.sent * index.sent_scale(0.0) == pytest.approx(1000)
    assert cache.sent * index.sent_scale(60.0) == pytest.approx(1000 / 2.71828, rel=1e-4)


def test_sent_work_is_continuous_over_hours() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 10_000)

    for hour_quarter in range(60):
        now_s = 900.0 * hour_quarter
        index.note_sent(cache, send(1, uncached=1000), now_s)

        assert cache.sent * index.sent_scale(now_s) == pytest.approx(1000, rel=1e-3)


@pytest.mark.parametrize("pause_s", [13_000.0, 1e6, 1e12])
def test_sent_work_survives_long_silence(pause_s: float) -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 10_000)
    index.note_sent(cache, send(1, uncached=900, output=100), 0.0)

    index.note_sent(cache, send(1, uncached=5), pause_s)

    assert cache.sent * index.sent_scale(pause_s) == pytest.approx(5)


def test_a_block_is_worth_its_part_of_the_prompt() -> None:
    index = PrefixIndex(block_tokens=100.0, most_blocks=4)

    assert index.weigh_block(Sent((1, 2), prompt_tokens=250)) == 100
    assert index.weigh_block(Sent((), prompt_tokens=250)) == 0
    assert index.weigh_block(Sent((1, 2, 3, 4), prompt_tokens=90_000)) == 100


def test_disagreement_raises_the_alarm_and_takes_the_worth() -> None:
    index = PrefixIndex()
    ticket = send(1, 2)

    for _ in range(40):
        index.note_result(prompt_tokens=1000, expected_tokens=800, engine_tokens=80)

    assert index.alarm
    assert index.agreement_ratio == pytest.approx(0.1)
    assert index.weigh_block(ticket) == pytest.approx(0.1 * 320 / 2.5)
    assert index.describe()["engine_hit_ratio"] == pytest.approx(0.08)
    assert index.describe()["expected_hit_ratio"] == pytest.approx(0.8)


def test_the_alarm_waits_for_evidence() -> None:
    index = PrefixIndex()

    for _ in range(10):
        index.note_result(prompt_tokens=1000, expected_tokens=800, engine_tokens=0)

    assert not index.alarm
    assert index.trust == 1.0


def test_the_alarm_ends_at_a_higher_ratio_than_it_began() -> None:
    index = PrefixIndex()
    for _ in range(100):
        index.note_result(prompt_tokens=1000, expected_tokens=1000, engine_tokens=0)
    states = []

    for _ in range(400):
        index.note_result(prompt_tokens=1000, expected_tokens=1000, engine_tokens=1000)
        states.append((index.alarm, index.agreement_ratio))

    last = max(ratio for alarm, ratio in states if alarm and ratio is not None)
    assert 0.6 < last < 0.65
    assert not index.alarm


def test_more_cached_than_expected_is_no_disagreement() -> None:
    index = PrefixIndex()

    for _ in range(100):
        index.note_result(prompt_tokens=1000, expected_tokens=300, engine_tokens=900)

    assert index.agreement_ratio == pytest.approx(1.0)
    assert not index.alarm


def test_engines_that_do_not_tell_leave_it_open() -> None:
    index = PrefixIndex()

    for _ in range(100):
        index.note_result(prompt_tokens=1000, expected_tokens=800, engine_tokens=None)

    shown = index.describe()
    assert (shown["agreement_ratio"], shown["engine_hit_ratio"], shown["results"]) == (None, None, 0)
    assert not index.alarm


def test_processes_tell_each_other_what_they_sent() -> None:
    mine, theirs = PrefixIndex(), PrefixIndex()
    own, same = mine.add("r1", 1, 10_000), theirs.add("r1", 1, 10_000)
    mine.note_sent(own, send(1, 2), 0.0)
    theirs.absorb_notes("gw-1", json.loads(json.dumps(mine.read_notes(0.2))))

    mine.note_sent(own, send(1, 2, 3), 0.3)
    notes = json.loads(json.dumps(mine.read_notes(0.4)))
    theirs.absorb_notes("gw-1", notes)
    theirs.absorb_notes("gw-1", notes)

    assert same.count_match((1, 2, 3)) == 3
    assert notes == [[1, ["r1", 1, None, [1, 2]]], [2, ["r1", 1, 2, [3]]]]
    assert theirs.read_notes(0.5) == []


def test_notes_keep_the_beginning_of_a_prompt_alive() -> None:
    mine, theirs = PrefixIndex(), PrefixIndex()
    own, same = mine.add("r1", 1, 10_000), theirs.add("r1", 1, 128 * 4)
    mine.note_sent(own, send(1, 2), 0.0)
    theirs.absorb_notes("gw-1", mine.read_notes(0.0))
    theirs.note_sent(same, send(7), 0.1)
    mine.note_sent(own, send(1, 2, 3), 0.2)
    theirs.absorb_notes("gw-1", mine.read_notes(0.2))

    theirs.note_sent(same, send(8), 0.3)

    assert same.count_match((1, 2, 3)) == 3
    assert same.count_match((7,)) == 0


def test_notes_of_unknown_replicas_and_nothing_are_passed_over() -> None:
    index = PrefixIndex()
    index.add("r1", 1, 10_000)

    index.absorb_notes("gw-1", [])
    index.absorb_notes("gw-1", [[1, ["r1", 7, None, [1]]], [2, ["r9", 1, None, [1]]]])

    assert index.describe()["blocks"] == 0


def test_notes_that_form_a_ring_end() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 10_000)

    index.absorb_notes("gw-1", [[1, ["r1", 1, 2, [1]]], [2, ["r1", 1, 1, [2]]]])

    assert cache.count_match((1, 2)) == 2


def test_notes_are_bounded_in_time_and_size() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 10**9)
    index.note_sent(cache, send(1), 0.0)

    assert index.read_notes(1.1) == []
    for number in range(10_000):
        index.note_sent(cache, send(number + 10), 2.0)

    assert len(index.read_notes(2.0)) == 2048


def test_gateways_that_went_are_forgotten() -> None:
    index = PrefixIndex()
    cache = index.add("r1", 1, 10**9)

    for number in range(300):
        index.absorb_notes(f"gw-{number}", [[1, ["r1", 1, None, [number]]]])
    index.absorb_notes("gw-0", [[1, ["r1", 1, None, [777]]]])

    assert cache.count_match((777,)) == 1
