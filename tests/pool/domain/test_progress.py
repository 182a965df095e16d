from __future__ import annotations

from dataclasses import dataclass

import pytest

from pool.domain.progress import LONGEST_SILENCE_S, SILENCE_S, ProgressWatch, Sign

T0 = 1_000.0


@dataclass
class Engine:
    in_flight: int = 0
    prefill_tokens: int = 0
    last_byte_at_s: float = 0.0


def watch_for(watch: ProgressWatch, engine: Engine, start_s: float, seconds: int) -> list[Sign]:
    return [watch.look(engine, start_s + second) for second in range(seconds)]


def test_fc01_requests_without_a_byte_are_a_hang_after_a_while() -> None:
    watch, engine = ProgressWatch(), Engine(in_flight=7)

    signs = watch_for(watch, engine, T0, 12)

    assert signs.index(Sign.HUNG) == SILENCE_S
    assert watch.share_fact(T0 + 12) == {"reason": "hung", "silent_s": 12.0}


def test_an_idle_engine_is_never_hung() -> None:
    watch = ProgressWatch()

    assert set(watch_for(watch, Engine(), T0, 100)) == {Sign.NONE}
    assert watch.share_fact(T0) is None


def test_one_request_alone_is_left_to_its_own_limit() -> None:
    assert set(watch_for(ProgressWatch(), Engine(in_flight=1), T0, 100)) == {Sign.NONE}


def test_bytes_that_keep_coming_are_progress() -> None:
    watch, engine = ProgressWatch(), Engine(in_flight=4)

    for second in range(100):
        engine.last_byte_at_s = T0 + second
        assert watch.look(engine, T0 + second) is Sign.NONE


def test_silence_counts_from_the_beginning_of_the_work() -> None:
    watch, engine = ProgressWatch(), Engine(last_byte_at_s=T0 - 3_600)
    watch_for(watch, engine, T0, 60)
    engine.in_flight = 2

    signs = watch_for(watch, engine, T0 + 60, 12)

    assert signs.index(Sign.HUNG) == SILENCE_S


def test_fc26_an_engine_that_prefills_much_is_given_the_time() -> None:
    watch, engine = ProgressWatch(), Engine(in_flight=5, prefill_tokens=30_000)

    signs = watch_for(watch, engine, T0, 60)

    assert signs.index(Sign.HUNG) == SILENCE_S + 30


def test_a_byte_clears_it_and_the_silence_is_learnt() -> None:
    watch, engine = ProgressWatch(), Engine(in_flight=2)
    watch_for(watch, engine, T0, 20)

    engine.last_byte_at_s = T0 + 20
    assert watch.look(engine, T0 + 20) is Sign.MOVED
    assert watch.share_fact(T0 + 20) is None

    assert set(watch_for(watch, engine, T0 + 20, 40)) == {Sign.NONE}
    assert watch.limit_s(engine) == pytest.approx(3 * 20, rel=0.25)


def test_what_was_learnt_is_forgotten_slowly_and_bounded() -> None:
    watch, engine = ProgressWatch(), Engine(in_flight=1)
    watch.look(engine, T0)
    engine.last_byte_at_s = T0 + 600
    watch.look(engine, T0 + 600)
    assert watch.limit_s(engine) == LONGEST_SILENCE_S

    for second in range(3_000):
        engine.last_byte_at_s = T0 + 600 + second
        watch.look(engine, engine.last_byte_at_s)

    assert watch.limit_s(engine) == SILENCE_S


def test_a_hang_is_over_when_nothing_is_in_flight_any_more() -> None:
    watch, engine = ProgressWatch(), Engine(in_flight=3)
    watch_for(watch, engine, T0, 20)

    engine.in_flight = 0

    assert watch.look(engine, T0 + 20) is Sign.NONE
    assert watch.share_fact(T0 + 20) is None
