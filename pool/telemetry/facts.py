"""Folds the gateways' facts into cells of one second, and makes request records of them. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import LAST_BUCKET, Histogram
from pool.models import RequestRecord
from pool.telemetry.records import JSON_PLACES, RECORD_COLUMNS
from pool.telemetry.rows import Row, dump_json

LONG_PROMPT_TOKENS = 8192
INTERRUPTED = frozenset({"interrupted", "late"})
CALLER_GONE = frozenset({"client_gone"})
MOST_REGIONS, MOST_LABELS = 64, 256
"""Per model. Callers name regions, and maybe labels: those beyond count as OTHER, so nobody makes series at will."""
OTHER = "other"
_HIGHEST: Final = 2**31 - 1
_TEXTS: Final = {
    "tag": 128, "model": 63, "lane": 63, "replica": 16, "node": 63, "key": 16, "tier": 16, "label": 63,
    "region": 63, "outcome": 63, "finish_reason": 16,
}  # fmt: skip
_IN_PATHS: Final = ("request_id", "model", "replica", "node")
"""Pages link to these: one that fits into no address would take the whole page with it."""
_TIMES: Final = (
    "tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s", "ttft_s", "e2e_s", "longest_gap_s",
)  # fmt: skip
_NUMBERS: Final = (
    "wished_release", "release", "prompt_tokens", "cached_tokens", "output_tokens", "retransmits", "session"
)  # fmt: skip
_COUNTS: Final = {
    "status": 999, "attempts": 32767, "late_gaps": _HIGHEST, "chunks": _HIGHEST, "truncated_tokens": _HIGHEST,
    "bytes_out": 2**62,
}  # fmt: skip
"""With the highest that is kept."""
_SWITCHES: Final = ("spilled", "stream", "estimated")
_SUMS: Final = ("tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s", "e2e_s")


@dataclass(slots=True)
class Fact:
    """One request as it is stored. `series`: where it counts, its own first."""

    request_id: str
    at: datetime
    end_s: int
    """The second (since 1970) in which it ended: there it is counted."""
    replica: str
    e2e_s: float | None
    series: tuple[SeriesKey, ...]
    cell: Cell
    values: dict[str, Any]

    @property
    def row(self) -> Row:
        row = list(map(self.values.get, RECORD_COLUMNS))
        for place in JSON_PLACES:
            row[place] = dump_json(row[place])
        return tuple(row)


@dataclass
class Folded:
    cells: dict[tuple[SeriesKey, datetime], Cell] = field(default_factory=dict)
    records: list[RequestRecord] = field(default_factory=list)
    unreadable: int = 0


@dataclass
class Names:
    """The regions and labels that count by name."""

    regions: dict[str, set[str]] = field(default_factory=dict)
    labels: dict[str, set[str]] = field(default_factory=dict)

    def bound(self, values: dict[str, Any]) -> None:
        model = values["model"]
        if values["region"]:
            values["region"] = _known(self.regions, model, values["region"], MOST_REGIONS)
        if values["label"]:
            values["label"] = _known(self.labels, model, values["label"], MOST_LABELS)


def fold(facts: Iterable[Mapping[str, Any]]) -> Folded:
    folded, names = Folded(), Names()
    for raw in facts:
        try:
            fact = read_fact(raw, names)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            folded.unreadable += 1
            continue
        folded.records.append(RequestRecord(**fact.values))
        ended_at = datetime.fromtimestamp(fact.end_s, tz=UTC)
        for key in fact.series:
            folded.cells.setdefault((key, ended_at), Cell()).add(fact.cell)
    return folded


def read_fact(fact: Mapping[str, Any], names: Names) -> Fact:
    """Raises AttributeError, KeyError, TypeError, ValueError or OverflowError for a fact of another shape."""
    values = _read_values(fact)
    names.bound(values)
    at_s, e2e_s = float(fact["at"]), values["e2e_s"]
    return Fact(
        request_id=values["request_id"],
        at=values["at"],
        end_s=int(at_s + (e2e_s or 0.0)),
        replica=values["replica"],
        e2e_s=e2e_s,
        series=series_of(values),
        cell=_read_cell(fact, values),
        values=values,
    )


def _read_values(fact: Mapping[str, Any]) -> dict[str, Any]:
    values = _read_texts(fact)
    values["at"] = datetime.fromtimestamp(float(fact["at"]), tz=UTC)
    for name in _TIMES:
        values[name] = read_time(fact.get(name))
    for name in _NUMBERS:
        number = values[name] = None if fact.get(name) is None else int(fact[name])
        if number is not None and not 0 <= number <= _HIGHEST:
            raise ValueError(f"{name} is {number}")
    for name, highest in _COUNTS.items():
        values[name] = min(highest, max(0, int(fact.get(name) or 0)))
    for name in _SWITCHES:
        values[name] = bool(fact.get(name))
    values["tries"], values["waits"] = _listed(fact.get("tries")), _listed(fact.get("waits"))
    values["flags"] = [str(flag)[:16] for flag in (fact.get("flags") or ())[:8]]
    return values


def _read_texts(fact: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: str(fact.get(name) or "")[:most] for name, most in _TEXTS.items()}
    values["request_id"] = str(fact["request_id"])[:64]
    if not values["model"]:
        raise ValueError("a request without a model")
    if "\0" in "".join(values.values()):
        raise ValueError("a text with a NUL in it")
    if any("/" in values[name] for name in _IN_PATHS):
        raise ValueError("a name with a slash in it")
    return values


def read_time(value: Any) -> float | None:
    """Seconds; None = not known. Raises TypeError or ValueError for what is no length of time."""
    if value is None:
        return None
    seconds = float(value)
    if not 0 <= seconds < 1e7:
        raise ValueError(f"a time of {seconds} s")
    return seconds


def _listed(value: Any) -> list[list[Any]]:
    """At most 16 short rows of texts and numbers."""
    if not value:
        return []
    return [
        [part if isinstance(part, int | float) else str(part)[:63] for part in row[:4]] for row in value[:16]
    ]


def series_of(values: Mapping[str, Any]) -> tuple[SeriesKey, ...]:
    own = SeriesKey(
        values["model"],
        values["release"] or 0,
        values["replica"],
        values["lane"],
        values["tier"],
        values["label"],
        (values["prompt_tokens"] or 0) > LONG_PROMPT_TOKENS,
    )
    region = values["region"]
    return (own, SeriesKey(values["model"], region=region)) if region else (own,)


def _read_cell(fact: Mapping[str, Any], values: Mapping[str, Any]) -> Cell:
    outcome, status, flags = values["outcome"], values["status"], values["flags"]
    interrupted, served = outcome in INTERRUPTED, fact.get("replica") is not None
    retried, truncated = values["attempts"] > 1, values["truncated_tokens"] > 0
    degraded = served and status < 500 and (retried or truncated or values["spilled"] or outcome == "late")
    counts = {
        "requests": 1,
        "errors": interrupted or status >= 500,
        "interrupted": interrupted,
        "late": outcome == "late",
        "refused": not served and status in (429, 503),
        "spilled": values["spilled"],
        "retried": retried,
        "degraded": degraded,
        "client_gone": outcome in CALLER_GONE,
        "cached_answers": bool(fact.get("from_cache")),
        "empty": "empty" in flags,
        "repeated": "repeated" in flags,
        "cut_by_length": "cut_by_length" in flags,
        "retransmits": values["retransmits"],
        "prompt_tokens": values["prompt_tokens"],
        "cached_tokens": values["cached_tokens"],
        "output_tokens": values["output_tokens"],
    }
    return Cell(
        counts={name: int(count) for name, count in counts.items() if count},
        sums={name: float(values[name]) for name in _SUMS if values[name]} if served else {},
        outcomes={outcome: 1},
        stages=_read_stages(fact, values),
    )


def _read_stages(fact: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Histogram]:
    stages: dict[str, Histogram] = {}
    outcome, output, e2e_s = values["outcome"], values["output_tokens"], values["e2e_s"]
    for stage, name in (("queue", "queue_s"), ("ttft", "ttft_s"), ("e2e", "e2e_s")):
        value = values[name]
        if value is not None and (stage != "e2e" or outcome not in CALLER_GONE):
            stages[stage] = Histogram.of((value,))
    if outcome == "ok" and output and e2e_s is not None:
        stages["per_token"] = Histogram.of((e2e_s / output,))
    gaps = fact.get("gaps")
    if gaps and gaps[1]:
        stages["itl"] = read_histogram(gaps)
    return stages


def read_histogram(written: Any) -> Histogram:
    """`[sum in seconds, {bucket: count}]`: sorted into the buckets of domain/histogram.py by who measured.

    Raises TypeError, ValueError or AttributeError for another shape.
    """
    sum_s, by_name = float(written[0]), written[1]
    counts = dict(zip(map(int, by_name), by_name.values(), strict=True))
    if not 0 <= sum_s < 1e9:
        raise ValueError(f"a histogram's sum of {sum_s} s")
    if counts and (min(counts) < 0 or max(counts) > LAST_BUCKET or not _are_counts(counts.values())):
        raise ValueError("a histogram of other buckets")
    return Histogram(counts, sum_s)


def _are_counts(values: Collection[Any]) -> bool:
    """Whole numbers from 1 on: a sum with a fraction among them is one itself."""
    return isinstance(sum(values), int) and min(values) >= 1 and max(values) <= _HIGHEST


def _known(names: dict[str, set[str]], model: str, name: str, most: int) -> str:
    known = names.setdefault(model, set())
    if name in known:
        return name
    if len(known) >= most:
        return OTHER
    known.add(name)
    return name
