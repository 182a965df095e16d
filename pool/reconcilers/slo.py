"""Judges SLOs and rules, opens and closes alerts, and has gateways hold back what a broken promise calls for.

A pass reads the newest cells and remembers the rest; what only a long time can change it reads now and then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from pool.domain.alerting import AlertState, Level, Reading, Signal
from pool.domain.burn import Count
from pool.domain.resource_rules import Rule, read_share
from pool.domain.slo import SloSettings, Window
from pool.domain.slo_signals import FIFTEEN, FIVE, MINUTE, Facts, SloRef, count_window, list_signals
from pool.queries.rule_readings import (
    list_capacity_signals,
    list_device_signals,
    list_golden_signals,
    list_node_signals,
    list_prefix_signals,
    list_ready_replicas,
    list_replica_signals,
    load_rules,
)
from pool.queries.slo_windows import SPAN, RecentCells, list_hours, list_spans, sum_spans
from pool.queries.slos import list_active_slos, list_lanes_to_propose
from pool.reconcilers.slo_actions import act_on
from pool.services.alerts import Standing, judge_signals, list_watched
from pool.services.restrictions import end_due
from pool.services.slos import forget_spans, propose_slo, store_reports, store_spans

EVERY: Final = timedelta(seconds=10)
"""Wake-ups come with every change of the database; judging more often than cells close finds nothing new."""
COUNT_EVERY: Final = timedelta(minutes=1)
GOLDEN_EVERY: Final = timedelta(minutes=5)
FORGET_EVERY: Final = timedelta(hours=1)
BACKFILL: Final = timedelta(days=1)
"""How far back a new SLO counts what is in the cells already."""
LATE: Final = timedelta(minutes=10)
"""Spans so young are counted again: late requests land in them."""
LONG_RULE: Final = "long_share"


@dataclass(slots=True)
class SloPass:
    """Call it as a loop's work. What it remembers is only a saving: a new one starts from the stored rows."""

    cells: RecentCells = field(default_factory=RecentCells)
    sums: dict[int, dict[timedelta, dict[str, Count]]] = field(default_factory=dict)
    hours: dict[int, list[float | None]] = field(default_factory=dict)
    golden: list[Signal] = field(default_factory=list)
    report: dict[str, object] = field(default_factory=dict)
    passed_at: datetime | None = None
    counted_at: datetime | None = None
    golden_at: datetime | None = None
    forgot_at: datetime | None = None

    def __call__(self, now: datetime) -> dict[str, object]:
        if self.passed_at is not None and timedelta() <= now - self.passed_at < EVERY:
            return self.report
        self.passed_at = now
        end_due(now)
        self.cells.refresh(now)
        slos, rules = list_active_slos(), load_rules()
        self._count(slos, now)
        standings = self._judge(slos, rules, now)
        acted = act_on(standings, slos, rules, now)
        self._look_after(now)
        levels = [standing.level for standing in standings if standing.level > Level.NORMAL]
        self.report = {"slos": len(slos), "alerts": len(levels), **acted}
        return self.report

    def _judge(self, slos: Sequence[SloRef], rules: Mapping[str, Rule], now: datetime) -> list[Standing]:
        signals: list[Signal] = []
        reports: dict[int, dict[str, Any]] = {}
        for slo in slos:
            found, reports[slo.id] = list_signals(slo, self._facts(slo, now))
            signals += found
        signals += self._rule_signals(rules, _late_models(signals), now)
        silent, gone = split_missing(list_watched(), signals, rules)
        standings = judge_signals([*signals, *silent], subjects_gone=gone, now=now)
        store_reports(reports)
        return standings

    def _rule_signals(self, rules: Mapping[str, Rule], late: set[str], now: datetime) -> list[Signal]:
        if _is_due(self.golden_at, GOLDEN_EVERY, now):
            self.golden_at = now
            self.golden = [*list_golden_signals(rules, now), *list_prefix_signals(rules, now)]
        return [
            *list_replica_signals(rules, now),
            *list_device_signals(rules, late, now),
            *list_capacity_signals(rules, now),
            *list_node_signals(rules, now),
            *self._long_signals(rules, now),
            *self.golden,
        ]

    def _long_signals(self, rules: Mapping[str, Rule], now: datetime) -> Iterable[Signal]:
        rule = rules.get(LONG_RULE)
        if rule is None:
            return
        for model in sorted({key.model for key in self.cells.keys.values()}):
            window = self.cells.window(SloRef(0, model, "", "", "", SloSettings()), FIFTEEN, now)
            reading = read_share(
                float(window.long_requests), float(window.requests), min_samples=rule.min_samples
            )
            evidence = {
                "unit": "ratio", "window_s": FIFTEEN.total_seconds(), "from": (now - FIFTEEN).isoformat(),
                "to": now.isoformat(),
            }  # fmt: skip
            yield Signal("resource", rule.name, model, reading, rule.limits, model=model, evidence=evidence)

    def _facts(self, slo: SloRef, now: datetime) -> Facts:
        recent = {span: self.cells.window(slo, span, now) for span in (MINUTE, FIVE, FIFTEEN)}
        counts = {**self.sums.get(slo.id, {}), FIVE: count_window(recent[FIVE], slo.settings)}
        return Facts(now, recent, counts, self.hours.get(slo.id, [None] * 24))

    def _count(self, slos: Sequence[SloRef], now: datetime) -> None:
        if not _is_due(self.counted_at, COUNT_EVERY, now):
            return
        for slo in slos:
            count_spans(slo, now)
        self.sums = sum_spans(now)
        self.hours = list_hours([slo.id for slo in slos], now)
        self.counted_at = now

    def _look_after(self, now: datetime) -> None:
        if not _is_due(self.forgot_at, FORGET_EVERY, now):
            return
        self.forgot_at = now
        forget_spans(now)
        propose(now)


def count_spans(slo: SloRef, now: datetime) -> None:
    """From where it was counted to, and the youngest spans again. May be cut anywhere: each span is counted whole."""
    start = now - BACKFILL if slo.counted_until is None else slo.counted_until - LATE
    start = max(start, now - timedelta(days=30))
    windows = list_spans(slo, start=floor_span(start), end=now)
    store_spans(slo, windows, counted_until=now)


def floor_span(at: datetime) -> datetime:
    seconds = SPAN.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, tz=at.tzinfo)


def propose(now: datetime) -> int:
    """For lanes without an SLO, from the first 1,000 streams of the last day."""
    made = 0
    for model, lane in list_lanes_to_propose():
        whole = SloRef(0, model, lane, "", "", SloSettings())
        spans = list_spans(whole, start=floor_span(now - BACKFILL), end=now)
        made += propose_slo(model, lane, merge_windows(spans.values()), now=now) is not None
    return made


def merge_windows(windows: Iterable[Window]) -> Window:
    total = Window()
    for window in windows:
        counts = {name: total.counts.get(name, 0) + count for name, count in window.counts.items()}
        total = Window(total.requests + window.requests, counts, total.ttft.merge(window.ttft))
    return total


def split_missing(
    watched: Mapping[str, AlertState], signals: Sequence[Signal], rules: Mapping[str, Rule]
) -> tuple[list[Signal], list[str]]:
    """Of what is watched and has no signal now: those that are silent, with a reading of that, and those that are
    no more. An engine that tells nothing is not a healthy one (FC-29)."""
    missing = watched.keys() - {signal.key for signal in signals}
    silent: list[Signal] = []
    gone: list[str] = []
    ready = list_ready_replicas() if missing else set()
    for key in sorted(missing):
        source, name, subject = key.split(" ", 2)
        rule = rules.get(name)
        ended = (
            rule is None
            or rule.subject in ("model", "pool")
            or (rule.subject == "replica" and subject not in ready)
        )
        if source == "slo" or rule is None or ended:
            gone.append(key)
        else:
            silent.append(Signal(source, name, subject, Reading(None, 0, "absent"), rule.limits))
    return silent, gone


def _late_models(signals: Iterable[Signal]) -> set[str]:
    """With a first token that is over the first level, or over a promise, now."""
    return {
        signal.model
        for signal in signals
        if signal.rule in ("ttft_p50", "ttft_p95", "ttft_p99")
        and signal.reading.is_known
        and (signal.reading.value or 0.0) >= min(signal.limits.enter.values())
    }


def _is_due(last_at: datetime | None, every: timedelta, now: datetime) -> bool:
    return last_at is None or not timedelta() <= now - last_at < every
