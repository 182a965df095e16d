from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pool.domain.liveness import (
    IDLE_PROBE_EVERY,
    LONGEST_BUDGET,
    PROBE_BUDGET,
    PROBE_FAILURES,
    STALL_LIMIT,
    Hung,
    Limits,
    Look,
    Probe,
    Serving,
    Watch,
    begin_watch,
    next_action,
    record_probe,
    take_look,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def look_at(second: float, *, tokens: float | None = 0.0, running: int | None = 0, **fields: object) -> Look:
    values = {"answers": True, "waiting": 0, **fields}
    return Look(at=T0 + second * SECOND, running=running, marks=(tokens,), **values)  # type: ignore[arg-type]


def seen(*looks: Look) -> Watch:
    watch = begin_watch(T0)
    for look in looks:
        watch = take_look(watch, look)
    return watch


def fail_probes(watch: Watch, count: int, *, at: datetime) -> Watch:
    for _ in range(count):
        watch = record_probe(watch, succeeded=False, at=at)
    return watch


def test_work_that_moves_is_serving() -> None:
    looks = [look_at(second, tokens=second, running=4) for second in range(20)]

    assert isinstance(next_action(seen(*looks), looks[-1], now=looks[-1].at), Serving)


def test_fc_01_work_that_waits_without_a_move_is_probed_and_then_hung() -> None:
    stuck = look_at(STALL_LIMIT.total_seconds() + 1, tokens=5.0, running=4)
    watch = seen(look_at(1, tokens=5.0, running=4), stuck)

    assert isinstance(next_action(watch, stuck, now=stuck.at), Probe)

    watch = fail_probes(watch, PROBE_FAILURES, at=stuck.at)
    action = next_action(watch, stuck, now=stuck.at)
    assert isinstance(action, Hung)
    assert action.silent_for > STALL_LIMIT


def test_fc_01_stale_gauges_do_not_hide_what_the_gateways_wait_for() -> None:
    stuck = look_at(STALL_LIMIT.total_seconds() + 1, running=0, in_flight=3)

    assert isinstance(next_action(seen(stuck), stuck, now=stuck.at), Probe)


def test_fc_26_a_late_probe_of_an_engine_that_moves_does_not_count() -> None:
    watch = fail_probes(seen(look_at(1, tokens=1.0, running=8)), 2, at=T0)

    moving = look_at(2, tokens=2.0, running=8)
    watch = take_look(watch, moving)

    assert watch.failed_probes == 0
    assert isinstance(next_action(watch, moving, now=moving.at), Serving)


def test_fc_26_the_probe_waits_longer_behind_a_queue() -> None:
    idle, busy = look_at(100, running=0), look_at(100, running=2, waiting=20)
    full = look_at(100, running=2, waiting=2000)

    short, long, longest = (next_action(seen(one), one, now=one.at) for one in (idle, busy, full))

    assert isinstance(short, Probe)
    assert isinstance(long, Probe)
    assert isinstance(longest, Probe)
    assert short.budget == PROBE_BUDGET
    assert long.budget > 2 * PROBE_BUDGET
    assert longest.budget == LONGEST_BUDGET


def test_fc_26_a_longest_prefill_is_waited_for() -> None:
    limits = Limits(longest_step=timedelta(seconds=80))
    quiet = look_at(60, running=1)

    assert isinstance(next_action(seen(quiet), quiet, limits=limits, now=quiet.at), Serving)


def test_three_quick_failures_right_after_progress_are_no_hang() -> None:
    busy = look_at(1, tokens=1.0, running=1)
    watch = fail_probes(seen(look_at(0.5, tokens=0.5, running=1), busy), PROBE_FAILURES, at=busy.at)

    assert isinstance(next_action(watch, busy, now=busy.at), Probe)


def test_an_idle_engine_is_probed_rarely() -> None:
    early, late = look_at(10), look_at(IDLE_PROBE_EVERY.total_seconds())

    assert isinstance(next_action(seen(early), early, now=early.at), Serving)
    assert isinstance(next_action(seen(late), late, now=late.at), Probe)


def test_a_probe_that_succeeds_clears_the_suspicion() -> None:
    stuck = look_at(30, running=1)
    watch = record_probe(fail_probes(seen(stuck), 2, at=stuck.at), succeeded=True, at=stuck.at)

    assert watch.failed_probes == 0
    assert isinstance(next_action(watch, stuck, now=stuck.at), Serving)


def test_an_api_that_does_not_answer_is_probed_at_once() -> None:
    silent = look_at(1, tokens=None, running=None, answers=False)

    assert isinstance(next_action(seen(silent), silent, now=silent.at), Probe)


def test_an_answer_at_a_gateway_is_progress() -> None:
    first = look_at(1, running=2, answered_at=T0)
    later = look_at(20, running=2, answered_at=T0 + 19 * SECOND)

    watch = seen(first, later)

    assert watch.moved_at == later.at


def test_a_mark_that_comes_back_is_no_progress() -> None:
    watch = seen(look_at(1, tokens=5.0), look_at(2, tokens=None), look_at(3, tokens=5.0))

    assert watch.moved_at == T0
    assert watch.marks == (5.0,)


def test_marks_of_another_shape_start_over() -> None:
    watch = take_look(seen(look_at(1, tokens=5.0)), Look(at=T0 + SECOND, answers=True, marks=(1.0, 2.0)))

    assert watch.marks == (1.0, 2.0)
    assert watch.moved_at == T0
