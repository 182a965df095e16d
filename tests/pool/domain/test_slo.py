"""What an SLO promises by default, by template and by proposal, and how windows and quantiles are read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pool.domain.alerting import Level, Reading
from pool.domain.burn import BUDGET_PERIOD, Count
from pool.domain.histogram import Histogram
from pool.domain.resource_rules import (
    RULES,
    InvalidRule,
    read_against,
    read_ratio,
    read_rule,
    read_share,
)
from pool.domain.slo import (
    InvalidSlo,
    SloSettings,
    Window,
    choose_window,
    count_slower,
    is_peak,
    make_settings,
    propose_settings,
    read_long_ratio,
    read_quantile,
    read_settings,
    write_settings,
)
from pool.domain.slo_signals import FIFTEEN, FIVE, MINUTE, Facts, SloRef, list_signals

NOW = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)


def window(fast: int, slow: int = 0, *, slow_s: float = 5.0, **counts: int) -> Window:
    ttft = Histogram.of([0.05] * fast + [slow_s] * slow)
    return Window(fast + slow, counts, ttft)


def test_the_short_lane_has_the_documented_limits() -> None:
    settings = make_settings("interactive")

    assert (settings.ttft_p50_s, settings.ttft_p95_s, settings.ttft_p99_s) == (0.45, 1.2, 2.0)
    assert (settings.yellow_s, settings.orange_s, settings.red_s) == (1.8, 2.5, 3.0)
    assert (settings.errors_ratio, settings.degraded_ratio, settings.interrupted_ratio) == (
        0.005,
        0.02,
        0.001,
    )


def test_other_lanes_are_in_proportion_to_their_target() -> None:
    settings = make_settings("interactive", ttft_target_ms=2000)

    assert settings.ttft_p99_s == pytest.approx(13.333)
    assert settings.red_s == pytest.approx(20.0)
    assert settings.errors_ratio == 0.005


@pytest.mark.parametrize(
    ("template", "field", "limit"),
    [("finance", "ttft_p99_s", 1.5), ("report", "ttft_p95_s", 3.0), ("long_context", "long_ttft_ratio", 1.4)],
)
def test_templates_by_label(template: str, field: str, limit: float) -> None:
    assert getattr(make_settings(template, ttft_target_ms=300), field) == limit


def test_a_proposal_needs_a_thousand_streams() -> None:
    assert propose_settings(window(999)) is None

    settings = propose_settings(window(990, 10))

    assert settings is not None
    assert settings.ttft_p50_s == pytest.approx(0.063, abs=0.001)
    assert settings.yellow_s == pytest.approx(0.9 * (settings.ttft_p99_s or 0))


def test_a_proposal_is_valid_whatever_was_measured() -> None:
    same = propose_settings(Window(1000, {}, Histogram.of([0.5] * 1000)))

    assert same is not None
    assert read_settings(write_settings(same)) == same


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"ttft_p99_s": 1.0}, "ttft_p99_s"),
        ({"orange_s": 1.0}, "orange_s"),
        ({"errors_ratio": 2}, "errors_ratio"),
        ({"errors_ratio": float("nan")}, "errors_ratio"),
        ({"min_samples": 1.5}, "min_samples"),
        ({"dry_run": 1}, "dry_run"),
        ({"orange_steps": ["scale_out"]}, "orange_steps"),
        ({"orange_steps": "shed_batch"}, "orange_steps"),
        ({"orange_steps": [{"a": 1}]}, "orange_steps"),
        ({"red_steps": [["no_long"]]}, "red_steps"),
        ({"peak_hours": [24]}, "peak_hours"),
        ({"peak_hours": 9}, "peak_hours"),
        ({"p100_s": 1}, "p100_s"),
        ({"yellow_s": "1"}, "yellow_s"),
    ],
)
def test_wrong_settings_name_their_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSlo) as refusal:
        read_settings(given)

    assert refusal.value.details["field"] == field


def test_settings_survive_being_stored() -> None:
    settings = replace(SloSettings(), peak_hours=(9, 10), ttft_p50_s=None, dry_run=True)

    assert read_settings(write_settings(settings)) == settings


def test_fleet_p99_is_taken_after_merging() -> None:
    merged = Histogram.of([0.05] * 980).merge(Histogram.of([5.0] * 20))

    assert read_quantile(merged, 0.99, min_samples=100).value == pytest.approx(5.0, rel=0.01)


def test_too_few_samples_are_no_verdict() -> None:
    assert read_quantile(Histogram.of([9.0] * 99), 0.99, min_samples=100).state == "few"
    assert read_quantile(Histogram(), 0.99, min_samples=100) == Reading(None, 0, "absent")


def test_slower_requests_are_counted_exactly() -> None:
    assert count_slower(Histogram.of([0.5, 1.0, 2.0, 2.1, 3.0]), 2.0) == 2


@pytest.mark.parametrize(
    ("burns", "samples", "peak", "minutes"),
    [
        (True, 100, True, 1),
        (True, 99, True, 5),
        (False, 500, True, 5),
        (False, 500, False, 15),
        (True, 99, False, 15),
    ],
)
def test_the_window(burns: bool, samples: int, peak: bool, minutes: int) -> None:
    span = choose_window(burns_fast=burns, samples_last_minute=samples, is_peak=peak, min_samples=50)

    assert span == timedelta(minutes=minutes)


def test_peak_hours_are_learned_or_set() -> None:
    by_hour: list[float | None] = [10.0] * 24
    by_hour[9] = 100.0

    assert is_peak(9, SloSettings(), by_hour)
    assert not is_peak(3, SloSettings(), by_hour)
    assert is_peak(3, SloSettings(), [None] * 24)
    assert not is_peak(9, replace(SloSettings(), peak_hours=(3,)), by_hour)


def test_long_prompts_against_the_others() -> None:
    long, rest = Histogram.of([2.8] * 200), Histogram.of([1.0] * 200)
    reading = read_long_ratio(Window(400, {}, rest.merge(long), long), min_samples=100)

    assert reading.value == pytest.approx(2.8, rel=0.03)
    assert read_long_ratio(Window(200, {}, rest), min_samples=100).state == "absent"


def facts(recent: Window, **counts: Count) -> Facts:
    longer = dict.fromkeys((FIVE, timedelta(minutes=30), *map(_hours, (1, 6, 72)), BUDGET_PERIOD), counts)
    return Facts(NOW, {MINUTE: recent, FIVE: recent, FIFTEEN: recent}, longer)


def _hours(count: int) -> timedelta:
    return timedelta(hours=count)


SLO = SloRef(1, "smollm2", "short", "", "", SloSettings())


def test_signals_carry_value_samples_and_window() -> None:
    signals, report = list_signals(SLO, facts(window(400, 100), ttft_p99=Count(10_000, 400)))

    p99 = next(signal for signal in signals if signal.rule == "ttft_p99")
    assert p99.reading.value == pytest.approx(5.0, rel=0.01)
    assert p99.reading.samples == 500
    assert p99.evidence["window_s"] == 300
    assert p99.limits.enter == {Level.YELLOW: 1.8, Level.ORANGE: 2.5, Level.RED: 3.0}
    assert report["objectives"]["ttft_p99"]["budget_left"] == pytest.approx(-3.0)
    assert report["objectives"]["errors"]["value"] == 0


def test_a_lane_without_traffic_has_signals_without_values() -> None:
    signals, report = list_signals(SLO, facts(Window()))

    assert all(not signal.reading.is_known for signal in signals)
    assert report["state"] == "absent"
    assert report["objectives"]["errors"]["value"] is None
    assert report["objectives"]["errors"]["budget_left"] is None


def test_what_is_not_promised_makes_no_signal() -> None:
    bare = replace(
        SloSettings(), ttft_p50_s=None, ttft_p95_s=None, ttft_p99_s=None, errors_ratio=None, degraded_ratio=None,
        interrupted_ratio=None, yellow_s=None, orange_s=None, red_s=None,
    )  # fmt: skip

    signals, report = list_signals(replace(SLO, settings=bare), facts(window(500)))

    assert signals == []
    assert set(report["objectives"].values()) == {None}


def test_rules_take_an_operators_limits() -> None:
    rule = read_rule(RULES["kv_in_use"], {"enter": {"yellow": 0.5, "red": 0.9}, "enter_hold_s": 5})

    assert rule.limits.enter == {Level.YELLOW: 0.5, Level.RED: 0.9}
    assert rule.limits.enter_hold == timedelta(seconds=5)
    assert rule.limits.exit_of(Level.YELLOW) == pytest.approx(0.45)


@pytest.mark.parametrize(
    "stored",
    [{"enter": {}}, {"enter": {"blue": 1}}, {"enter": {"yellow": 2, "red": 1}}, {"enter_hold_s": -1}, {"x": 1},
     {"enter": {"red": True}}],
)  # fmt: skip
def test_wrong_limits_of_a_rule_are_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(InvalidRule):
        read_rule(RULES["kv_in_use"], stored)


def test_golden_rules_only_plan() -> None:
    golden = [rule for rule in RULES.values() if rule.is_golden]

    assert {rule.name for rule in golden} == {"p99_over_p50", "p99_over_p95", "p50_over_last_week"}
    assert all(set(rule.limits.enter) == {Level.PLAN} and not rule.steps for rule in golden)
    with pytest.raises(InvalidRule):
        read_rule(golden[0], {"enter": {"red": 4.0}})


def test_golden_readings_need_five_hundred_samples() -> None:
    wide = Histogram.of([0.1] * 480 + [0.5] * 20)

    assert read_ratio(wide, 0.99, 0.5).value == pytest.approx(5.0, rel=0.02)
    assert read_ratio(Histogram.of([0.1] * 499), 0.99, 0.5).state == "few"
    assert read_against(wide, Histogram()).state == "absent"
    assert read_against(wide, Histogram.of([0.05] * 500)).value == pytest.approx(2.0, rel=0.02)


def test_a_share_of_nothing_is_absent() -> None:
    assert read_share(0, 0, min_samples=1).state == "absent"
    assert read_share(None, 5, min_samples=1).state == "absent"
    assert read_share(3, 10, min_samples=20).state == "few"
    assert read_share(3, 10, min_samples=10).value == pytest.approx(0.3)
