"""What the rules on memory, load and shape are held against: gauges of the last minute, cells of the last hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Exists, OuterRef

from pool.domain.alerting import Reading, Signal
from pool.domain.gauges import GaugeCell, Subject
from pool.domain.histogram import Histogram
from pool.domain.memory_map import FEWEST_HELD_BLOCKS
from pool.domain.resource_rules import (
    ALLOCATOR_FLOOR_BYTES,
    HOT_HIT_RATIO,
    RULES,
    Rule,
    read_against,
    read_ratio,
    read_rule,
    read_share,
)
from pool.models import Device, NodeLease, PhaseChange, PlanInForce, Replica, RuleChange
from pool.queries.cells import CellFilter, find_series, list_stage
from pool.queries.gauges import find_subjects, list_gauge_cells, sum_counters

MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
WEEK: Final = timedelta(days=7)
GOLDEN_STAGES: Final = ("queue", "ttft", "itl", "per_token")
QUEUE_FLOOR_S: Final = 0.1
"""Where the P99 of queueing is below this, the shape of the rest says nothing."""


def load_rules() -> dict[str, Rule]:
    """With what operators changed; those that are off are left out."""
    stored = dict(RuleChange.objects.values_list("rule", "settings"))
    return {
        name: read_rule(rule, stored.get(name, {}))
        for name, rule in RULES.items()
        if not stored.get(name, {}).get("off")
    }


def list_ready_replicas() -> set[str]:
    return set(Replica.objects.filter(phase="ready").values_list("pk", flat=True))


def list_replica_signals(rules: Mapping[str, Rule], now: datetime) -> list[Signal]:
    """Of ready replicas with gauges in the last minute; what a replica does not tell makes no signal. 3 queries."""
    found = []
    for subject, cell in _last_minute("replica", list(list_ready_replicas()), now):
        for name, reading in _replica_readings(cell):
            if name in rules:
                found.append(_signal(rules[name], subject.name, reading, now, subject))
    return found


def list_device_signals(rules: Mapping[str, Rule], late_models: Iterable[str], now: datetime) -> list[Signal]:
    """`late_models`: those with a lane over its first level now."""
    late, found = set(late_models), []
    by_device: dict[str, set[str]] = defaultdict(set)
    rows = Replica.objects.filter(phase="ready").values_list("device_uuids", "release__model__name")
    for devices, model in rows:
        for device in devices:
            by_device[device].add(model)
    # What a host's memory holds besides engines is its own business: databases, caches, this console.
    shared = set(Device.objects.filter(kind="cpu").values_list("uuid", flat=True))
    for subject, cell in _last_minute("device", list(by_device), now):
        foreign, total = cell.gauges.get("memory_foreign_bytes"), cell.gauges.get("memory_total_bytes")
        if foreign and total and "foreign_memory" in rules and subject.name not in shared:
            reading = Reading(foreign.mean / total.mean, foreign.count)
            found.append(_signal(rules["foreign_memory"], subject.name, reading, now, subject))
        busy = cell.gauges.get("utilization_ratio")
        if busy and "busy_and_late" in rules:
            for model in sorted(by_device[subject.name]):
                value = busy.mean if model in late else 0.0
                about = replace(subject, model=model)
                reading = Reading(value, busy.count)
                found.append(_signal(rules["busy_and_late"], f"{subject.name}/{model}", reading, now, about))
    return found


def list_prefix_signals(rules: Mapping[str, Rule], now: datetime) -> list[Signal]:
    """By model and lane, over the last ten minutes' engine counters. 2 queries."""
    rule = rules.get("prefix_misses")
    if rule is None:
        return []
    subjects = find_subjects("replica")
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for number, counters in sum_counters(subjects, now - 10 * MINUTE, now, 300).items():
        asked, hits = counters.get("prefix_queries_tokens"), counters.get("prefix_hits_tokens")
        if asked is not None and hits is not None:
            total = sums[subjects[number].model, subjects[number].lane]
            total[0], total[1] = total[0] + asked, total[1] + hits
    found = []
    for (model, lane), (asked, hits) in sums.items():
        if asked and hits / asked >= HOT_HIT_RATIO:
            reading = read_share(asked - hits, asked, min_samples=rule.min_samples)
            about = Subject("lane", "", model=model, lane=lane)
            found.append(_signal(rule, f"{model}/{lane or '*'}", reading, now, about, span=10 * MINUTE))
    return found


def list_capacity_signals(rules: Mapping[str, Rule], now: datetime) -> list[Signal]:
    """Replicas that served before and do not now, of releases that the plan sends traffic to. 2 queries.

    One that loads for the first time takes nothing away, so it does not count.
    """
    rule = rules.get("reduced_capacity")
    if rule is None:
        return []
    weighted = {
        (plan.plan.model_id, int(number))
        for plan in PlanInForce.objects.select_related("plan")
        for weights in (plan.plan.weights, *plan.plan.lanes.values())
        for number, percent in weights.items()
        if percent
    }
    was_ready = PhaseChange.objects.filter(replica=OuterRef("pk"), phase="ready")
    rows = Replica.objects.filter(Exists(was_ready), wish="run").values_list(
        "release__model_id", "release__model__name", "release__number", "phase"
    )
    missing: dict[str, int] = defaultdict(int)
    for model_id, model, number, phase in rows:
        if (model_id, number) in weighted:
            missing[model] += phase != "ready"
    return [
        _signal(rule, model, Reading(float(count), 1), now, Subject("model", "", model=model))
        for model, count in missing.items()
    ]


def list_node_signals(rules: Mapping[str, Rule], now: datetime) -> list[Signal]:
    """The share of nodes whose lease is over. 1 query; none without a node."""
    rule = rules.get("nodes_silent")
    leases = list(NodeLease.objects.values_list("until", flat=True)) if rule else []
    if rule is None or not leases:
        return []
    share = sum(until <= now for until in leases) / len(leases)
    return [_signal(rule, "nodes", Reading(share, len(leases)), now, Subject("pool", "nodes"))]


def list_golden_signals(rules: Mapping[str, Rule], now: datetime) -> list[Signal]:
    """By model, lane and stage, over the last hour's five-minute cells. 3 queries a stage."""
    found: list[Signal] = []
    if not any(rule.is_golden for rule in rules.values()):
        return found
    series = find_series(CellFilter())
    for stage in GOLDEN_STAGES:
        current = _by_lane(series, stage, now - HOUR, now)
        before = _by_lane(series, stage, now - WEEK - HOUR, now - WEEK) if current else {}
        for (model, lane), histogram in current.items():
            if stage == "queue" and (histogram.quantile(0.99) or 0.0) < QUEUE_FLOOR_S:
                continue
            earlier = before.get((model, lane), Histogram())
            about = Subject("lane", stage, model=model, lane=lane)
            for name, reading in _golden_readings(histogram, earlier):
                if name in rules:
                    place = f"{model}/{lane or '*'}/{stage}"
                    found.append(_signal(rules[name], place, reading, now, about, span=HOUR))
    return found


def _golden_readings(histogram: Histogram, earlier: Histogram) -> Iterable[tuple[str, Reading]]:
    yield "p99_over_p50", read_ratio(histogram, 0.99, 0.50)
    yield "p99_over_p95", read_ratio(histogram, 0.99, 0.95)
    yield "p50_over_last_week", read_against(histogram, earlier)


def _by_lane(
    series: Mapping[int, Any], stage: str, start: datetime, end: datetime
) -> dict[tuple[str, str], Histogram]:
    buckets: dict[tuple[str, str], dict[int, int]] = {}
    for number, _, content in list_stage(series, stage, start=start, end=end, resolution_s=300):
        mine = buckets.setdefault((series[number].model, series[number].lane), {})
        for bucket, count in Histogram.from_bytes(bytes(content)).counts.items():
            mine[bucket] = mine.get(bucket, 0) + count
    return {place: Histogram(counts) for place, counts in buckets.items()}


def _last_minute(kind: str, names: list[str], now: datetime) -> list[tuple[Subject, GaugeCell]]:
    subjects = find_subjects(kind, names=names) if names else {}
    totals: dict[int, GaugeCell] = {}
    for number, _, cell in list_gauge_cells(subjects, now - MINUTE, now, 10, steps=()) if subjects else ():
        totals.setdefault(number, GaugeCell()).add(cell)
    return [(subjects[number], cell) for number, cell in totals.items()]


def _replica_readings(cell: GaugeCell) -> Iterable[tuple[str, Reading]]:
    inactive, reserved = cell.gauges.get("inactive_split_bytes"), cell.gauges.get("reserved_bytes")
    if inactive and reserved and reserved.mean >= ALLOCATOR_FLOOR_BYTES:
        yield "allocator_fragmentation", Reading(inactive.mean / reserved.mean, inactive.count)
    used, blocks = cell.gauges.get("kv_used_blocks"), cell.gauges.get("kv_blocks")
    if used and blocks and blocks.mean:
        yield "kv_in_use", Reading(used.mean / blocks.mean, used.count)
    tail, held = cell.gauges.get("kv_tail_tokens"), cell.gauges.get("kv_held_tokens")
    if used and tail and held and held.mean:
        value = tail.mean / held.mean if used.mean >= FEWEST_HELD_BLOCKS else 0.0
        yield "kv_tail", Reading(value, tail.count)


def _signal(
    rule: Rule, subject: str, reading: Reading, now: datetime, about: Subject, *, span: timedelta = MINUTE
) -> Signal:
    return Signal(
        "golden" if rule.is_golden else "resource",
        rule.name,
        subject,
        reading,
        rule.limits,
        model=about.model,
        lane=about.lane,
        evidence={
            "unit": rule.unit,
            "window_s": span.total_seconds(),
            "from": (now - span).isoformat(),
            "to": now.isoformat(),
            **({"node": about.node} if about.node else {}),
            **({"stage": about.name} if rule.is_golden else {}),
            **({"replica": about.name} if about.kind == "replica" else {}),
        },
    )
