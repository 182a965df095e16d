"""Reads the workers' samples: gauges of replicas, devices and processes, and engines' times of single requests. No I/O.

A sample's time is its receipt minus the age that its sender states, so no sender's clock matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pool.domain.gauges import COUNTERS, GAUGES, STEPS, Gauge, GaugeCell, Subject
from pool.telemetry.facts import read_histogram, read_time

_NAMES: Final = {kind: frozenset(names) for kind, names in GAUGES.items()}
_COUNTED: Final = {kind: frozenset(names) for kind, names in COUNTERS.items()}
_STEPS: Final = frozenset(STEPS)
_FAULTS: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
_HIGHEST_COUNT: Final = 2**31 - 1

Reading = tuple[Subject, int, GaugeCell]


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """What the engine itself measured of a request, in seconds; None = it did not."""

    request_id: str
    replica: str
    """"" = not told."""
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    preemptions: int | None


def read_sample(
    sample: Mapping[str, Any], received_s: float, on_fault: Callable[[], None]
) -> Iterator[Reading]:
    """(whose, second, gauges) of all that can be read; `on_fault` is called for each part that cannot."""
    node = str(sample.get("node") or "")[:63]
    for kind, part, make in (
        ("replica", "replicas", _replica_of),
        ("device", "devices", _device_of),
        ("process", "processes", _process_of),
    ):
        for entry in sample.get(part) or ():
            try:
                age_s = float(entry.get("age_s") or 0.0)
                if not 0 <= age_s < 1e6:
                    raise ValueError(f"an age of {age_s} s")
                cell = _read_cell(kind, entry)
                subject = make(entry, node)
            except _FAULTS:
                on_fault()
                continue
            if cell is not None:
                yield subject, int(received_s - age_s), cell


def read_engine_times(sample: Mapping[str, Any], on_fault: Callable[[], None]) -> Iterator[EngineTimes]:
    for entry in sample.get("requests") or ():
        try:
            preemptions = entry.get("preemptions")
            yield EngineTimes(
                request_id=str(entry["id"])[:64],
                replica=str(entry.get("replica") or ""),
                queue_s=read_time(entry.get("queue_s")),
                prefill_s=read_time(entry.get("prefill_s")),
                decode_s=read_time(entry.get("decode_s")),
                preemptions=None if preemptions is None else min(_HIGHEST_COUNT, max(0, int(preemptions))),
            )
        except _FAULTS:
            on_fault()


def _read_cell(kind: str, entry: Mapping[str, Any]) -> GaugeCell | None:
    """None where nothing was measured."""
    gauges = entry.get("gauges") or {}
    cell = GaugeCell(gauges=_read_gauges(gauges, _NAMES[kind]))
    counted = _COUNTED[kind]
    for name, increase in (entry.get("counters") or {}).items():
        if not 0 <= increase < math.inf:
            raise ValueError(f"{name} rose by {increase}")
        if name in counted:
            cell.counters[name] = increase
    for name, written in (entry.get("steps") or {}).items():
        if name in _STEPS and written[1]:
            cell.steps[name] = read_histogram(written)
    return cell if cell.gauges or cell.counters or cell.steps else None


def _read_gauges(written: Mapping[str, Any], names: frozenset[str]) -> dict[str, Gauge]:
    gauges: dict[str, Gauge] = {}
    total_of_all: float = 0.0
    for name, (low, total, high, count) in written.items():
        if low > high or not 0 <= count <= _HIGHEST_COUNT:
            raise ValueError(f"{name} is no gauge")
        total_of_all += low + total + high
        if count and name in names:
            gauges[name] = Gauge(low, total, high, count)
    # One that is no number, or infinite, makes the sum so.
    if not math.isfinite(total_of_all):
        raise ValueError("a gauge that is no number")
    return gauges


def _replica_of(entry: Mapping[str, Any], node: str) -> Subject:
    return Subject(
        "replica",
        _name(entry["id"], 96),
        node,
        _name(entry.get("model") or "", 63),
        min(_HIGHEST_COUNT, max(0, int(entry.get("release") or 0))),
        _text(entry.get("lane") or "", 63),
    )


def _device_of(entry: Mapping[str, Any], node: str) -> Subject:
    return Subject("device", _text(entry["uuid"], 96), node)


def _process_of(entry: Mapping[str, Any], node: str) -> Subject:
    return Subject("process", _text(entry["name"], 96), node)


def _name(value: Any, most: int) -> str:
    """Of what pages link to."""
    text = _text(value, most)
    if "/" in text:
        raise ValueError("a name with a slash in it")
    return text


def _text(value: Any, most: int) -> str:
    text = str(value)[:most]
    if "\0" in text:
        raise ValueError("a text with a NUL in it")
    return text
