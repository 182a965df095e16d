"""What the pool did in the last minutes: throughput, errors by kind, quality of answers, load of devices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from pool.domain.gauges import Subject
from pool.domain.quality import Quality
from pool.queries.gauges import find_subjects, list_gauge_cells

WINDOW = timedelta(minutes=15)
STEP = timedelta(seconds=10)
ERRORS_OVER = timedelta(hours=1)
BASE = timedelta(days=1)
MINUTE = timedelta(minutes=1)
MOST_DEVICES = 64


@dataclass(frozen=True)
class Throughput:
    """Of one step of ten seconds in which something ended."""

    at: datetime
    requests_per_s: float
    errors_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True)
class OutcomeCount:
    outcome: str
    requests: int


@dataclass(frozen=True)
class DeviceLoad:
    """`utilization`: share of each minute in which it computed, oldest first; None = not measured then."""

    device: str
    node: str
    utilization: tuple[float | None, ...]
    pcie_tx_bytes_per_s: float | None
    pcie_rx_bytes_per_s: float | None
    """Means of the last minute that was measured."""


@dataclass(frozen=True)
class PcieStep:
    at: datetime
    tx_bytes_per_s: float
    rx_bytes_per_s: float


@dataclass(frozen=True)
class Activity:
    at: datetime
    since: datetime
    throughput: tuple[Throughput, ...]
    outcomes: tuple[OutcomeCount, ...]
    """Of the last hour, most frequent first, `ok` among them."""
    quality: tuple[Quality, ...]
    devices: tuple[DeviceLoad, ...]
    devices_left_out: int
    pcie: tuple[PcieStep, ...]
    newest_at: datetime | None
    """Of the newest cell; None: nothing was counted in the window."""


def load_activity(*, now: datetime) -> Activity:
    """Six queries, whatever the size of the pool."""
    throughput = _load_throughput(now)
    devices, left_out, pcie = _load_devices(now)
    return Activity(
        at=now,
        since=_floor(now - WINDOW, STEP),
        throughput=throughput,
        outcomes=_load_outcomes(now),
        quality=_load_quality(now),
        devices=devices,
        devices_left_out=left_out,
        pcie=pcie,
        newest_at=throughput[-1].at if throughput else None,
    )


def _load_throughput(now: datetime) -> tuple[Throughput, ...]:
    step_s = STEP.total_seconds()
    rows = _select(
        """SELECT at, sum(requests), sum(errors), sum(prompt_tokens), sum(output_tokens)
           FROM pool_tensecondcell JOIN pool_series ON pool_series.id = series_id
           WHERE region = '' AND at >= %s AND at <= %s GROUP BY at ORDER BY at""",
        [_floor(now - WINDOW, STEP), now],
    )
    return tuple(Throughput(at, *(float(value) / step_s for value in values)) for at, *values in rows)


def _load_outcomes(now: datetime) -> tuple[OutcomeCount, ...]:
    rows = _select(
        """SELECT key, sum(value::bigint) FROM pool_tensecondcell
           JOIN pool_series ON pool_series.id = series_id, jsonb_each_text(outcomes)
           WHERE region = '' AND at >= %s AND at <= %s GROUP BY key ORDER BY 2 DESC, 1 LIMIT 40""",
        [now - ERRORS_OVER, now],
    )
    return tuple(OutcomeCount(str(outcome), int(count)) for outcome, count in rows)


def _load_quality(now: datetime) -> tuple[Quality, ...]:
    """Now: the window, at ten seconds; before: the day that ended with it, at five minutes."""
    fields = """model, release, coalesce(sum((outcomes->>'ok')::bigint), 0), sum(empty), sum(repeated),
                sum(cut_by_length), sum(output_tokens)"""
    rows = f"""SELECT {fields} FROM %s JOIN pool_series ON pool_series.id = series_id
               WHERE region = '' AND release > 0 AND at >= %%s AND at < %%s GROUP BY model, release"""
    recent = _select(rows % "pool_tensecondcell", [now - WINDOW, now])
    before = _select(rows % "pool_fiveminutecell", [now - WINDOW - BASE, now - WINDOW])
    usual = {(model, release): (int(answers), int(tokens)) for model, release, answers, *_, tokens in before}
    return tuple(
        Quality(
            model=model,
            release=release,
            answers=int(answers),
            empty=int(empty),
            repeated=int(repeated),
            cut_by_length=int(cut),
            output_tokens=int(tokens),
            answers_before=usual.get((model, release), (0, 0))[0],
            output_tokens_before=usual.get((model, release), (0, 0))[1],
        )
        for model, release, answers, empty, repeated, cut, tokens in sorted(recent)
    )


def _load_devices(now: datetime) -> tuple[tuple[DeviceLoad, ...], int, tuple[PcieStep, ...]]:
    subjects = find_subjects("device")
    shown = dict(sorted(subjects.items(), key=lambda item: (item[1].node, item[1].name))[:MOST_DEVICES])
    start = _floor(now - WINDOW, MINUTE)
    minutes = int(WINDOW / MINUTE) + 1
    busy: dict[int, list[list[float]]] = {number: [[] for _ in range(minutes)] for number in shown}
    traffic: dict[int, tuple[float | None, float | None]] = {}
    sums: dict[datetime, list[float]] = {}
    for number, at, cell in list_gauge_cells(shown, start, now, 10, steps=()):
        minute = int((at - start) / MINUTE)
        utilization = cell.gauges.get("utilization_ratio")
        if utilization is not None and minute < minutes:
            busy[number][minute].append(utilization.mean)
        sent, received = cell.gauges.get("pcie_tx_bytes_per_s"), cell.gauges.get("pcie_rx_bytes_per_s")
        if sent is not None and received is not None:
            traffic[number] = (sent.mean, received.mean)
            total = sums.setdefault(at, [0.0, 0.0])
            total[0] += sent.mean
            total[1] += received.mean
    devices = tuple(_device(subject, busy[number], traffic.get(number)) for number, subject in shown.items())
    pcie = tuple(PcieStep(at, *total) for at, total in sorted(sums.items()))
    return devices, len(subjects) - len(shown), pcie


def _device(
    subject: Subject, busy: list[list[float]], traffic: tuple[float | None, float | None] | None
) -> DeviceLoad:
    sent, received = traffic or (None, None)
    means = tuple(sum(values) / len(values) if values else None for values in busy)
    return DeviceLoad(subject.name, subject.node, means, sent, received)


def _select(sql: str, values: list[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def _floor(at: datetime, step: timedelta) -> datetime:
    seconds = step.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, tz=UTC)
