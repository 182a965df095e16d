"""Folds the gateways' facts into cells of one second, and makes request records of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import RequestRecord

LONG_PROMPT_TOKENS = 8192
INTERRUPTED = frozenset({"interrupted", "late"})
CALLER_GONE = frozenset({"client_gone"})
_TEXTS = {
    "tag": 128, "model": 63, "lane": 63, "replica": 16, "node": 63, "key": 16, "tier": 16, "label": 63,
    "region": 63, "outcome": 63, "finish_reason": 16,
}  # fmt: skip
_TIMES = ("tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s", "ttft_s", "e2e_s", "longest_gap_s")
_NUMBERS = (
    "wished_release", "release", "prompt_tokens", "cached_tokens", "output_tokens", "retransmits",
)  # fmt: skip
_COUNTS = ("status", "attempts", "late_gaps", "chunks", "bytes_out", "truncated_tokens")


@dataclass
class Folded:
    cells: dict[tuple[SeriesKey, datetime], Cell] = field(default_factory=dict)
    records: list[RequestRecord] = field(default_factory=list)
    unreadable: int = 0


def fold(facts: Iterable[Mapping[str, Any]]) -> Folded:
    folded = Folded()
    for fact in facts:
        try:
            record, cell = read_record(fact), read_cell(fact)
        except (KeyError, TypeError, ValueError, OverflowError):
            folded.unreadable += 1
            continue
        folded.records.append(record)
        ended_at = end_of(fact)
        for key in keys_of(record):
            folded.cells.setdefault((key, ended_at), Cell()).add(cell)
    return folded


def end_of(fact: Mapping[str, Any]) -> datetime:
    """The second in which the request ended: there it is counted."""
    return datetime.fromtimestamp(int(float(fact["at"]) + float(fact.get("e2e_s") or 0.0)), tz=UTC)


def keys_of(record: RequestRecord) -> tuple[SeriesKey, ...]:
    own = SeriesKey(
        model=record.model,
        release=record.release or 0,
        replica=record.replica,
        lane=record.lane,
        tier=record.tier,
        label=record.label,
        long_prompt=(record.prompt_tokens or 0) > LONG_PROMPT_TOKENS,
    )
    return (own, SeriesKey(model=record.model, region=record.region)) if record.region else (own,)


def read_record(fact: Mapping[str, Any]) -> RequestRecord:
    """Raises KeyError, TypeError or ValueError for a fact of another shape."""
    values: dict[str, Any] = {name: str(fact.get(name) or "")[:length] for name, length in _TEXTS.items()}
    values |= {name: _time_of(fact, name) for name in _TIMES}
    values |= {name: None if fact.get(name) is None else int(fact[name]) for name in _NUMBERS}
    values |= {name: int(fact.get(name) or 0) for name in _COUNTS}
    if not values["model"]:
        raise ValueError("a request without a model")
    return RequestRecord(
        request_id=str(fact["request_id"])[:64],
        at=datetime.fromtimestamp(float(fact["at"]), tz=UTC),
        spilled=bool(fact.get("spilled")),
        stream=bool(fact.get("stream")),
        estimated=bool(fact.get("estimated")),
        tries=list(fact.get("tries") or ())[:16],
        waits=list(fact.get("waits") or ())[:16],
        flags=[str(flag)[:16] for flag in fact.get("flags") or ()][:8],
        **values,
    )


def read_cell(fact: Mapping[str, Any]) -> Cell:
    outcome, status = str(fact.get("outcome") or ""), int(fact.get("status") or 0)
    interrupted, served = outcome in INTERRUPTED, fact.get("replica") is not None
    flags = frozenset(fact.get("flags") or ())
    retried, truncated = int(fact.get("attempts") or 0) > 1, bool(fact.get("truncated_tokens"))
    degraded = (
        served and status < 500 and (retried or truncated or bool(fact.get("spilled")) or outcome == "late")
    )
    counts = {
        "requests": 1,
        "errors": interrupted or status >= 500,
        "interrupted": interrupted,
        "late": outcome == "late",
        "refused": not served and status in (429, 503),
        "spilled": bool(fact.get("spilled")),
        "retried": retried,
        "degraded": degraded,
        "client_gone": outcome in CALLER_GONE,
        "cached_answers": bool(fact.get("from_cache")),
        "empty": "empty" in flags,
        "repeated": "repeated" in flags,
        "cut_by_length": "cut_by_length" in flags,
        "retransmits": int(fact.get("retransmits") or 0),
        "prompt_tokens": int(fact.get("prompt_tokens") or 0),
        "cached_tokens": int(fact.get("cached_tokens") or 0),
        "output_tokens": int(fact.get("output_tokens") or 0),
    }
    cell = Cell(counts={name: int(count) for name, count in counts.items() if count}, outcomes={outcome: 1})
    if served:
        names = ("tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s", "e2e_s")
        cell.sums = {name: value for name in names if (value := _time_of(fact, name))}
    cell.stages = _stages(fact, outcome)
    return cell


def _stages(fact: Mapping[str, Any], outcome: str) -> dict[str, Histogram]:
    stages: dict[str, Histogram] = {}
    for stage, name in (("queue", "queue_s"), ("ttft", "ttft_s"), ("e2e", "e2e_s")):
        value = _time_of(fact, name)
        if value is not None and (stage != "e2e" or outcome not in CALLER_GONE):
            stages[stage] = Histogram.of([value])
    output, e2e_s = int(fact.get("output_tokens") or 0), _time_of(fact, "e2e_s")
    if outcome == "ok" and output and e2e_s is not None:
        stages["per_token"] = Histogram.of([e2e_s / output])
    gaps = fact.get("gaps")
    if gaps:
        # [sum in seconds, {bucket: count}]: the gateway has sorted them into the buckets of domain/histogram.py.
        counts = {int(bucket): int(count) for bucket, count in gaps[1].items()}
        stages["itl"] = Histogram(counts, float(gaps[0]))
    return stages


def _time_of(fact: Mapping[str, Any], name: str) -> float | None:
    value = fact.get(name)
    if value is None:
        return None
    seconds = float(value)
    if not 0 <= seconds < 1e7:
        raise ValueError(f"{name} is {seconds}")
    return seconds
