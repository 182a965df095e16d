"""One request: its times, attempts and what stood in its way. Never its text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pool.domain.waterfall import Span, lay_out
from pool.models import RequestRecord

RECENT = timedelta(hours=1)


@dataclass(frozen=True)
class Attempt:
    replica: str
    sent_s: float
    """After the request's arrival."""
    result: str


@dataclass(frozen=True)
class Obstacle:
    reason: str
    waited_s: float


@dataclass(frozen=True)
class RequestView:
    """None = not known, not 0. Lengths of time are in seconds."""

    request_id: str
    at: datetime
    tag: str
    model: str
    lane: str
    wished_release: int | None
    release: int | None
    replica: str
    node: str
    key: str
    tier: str
    label: str
    region: str
    status: int
    outcome: str
    finish_reason: str
    stream: bool
    spilled: bool
    attempts: tuple[Attempt, ...]
    obstacles: tuple[Obstacle, ...]
    spans: tuple[Span, ...]
    tokenize_s: float | None
    queue_s: float | None
    first_byte_s: float | None
    decode_s: float | None
    stream_s: float | None
    ttft_s: float | None
    e2e_s: float | None
    longest_gap_s: float | None
    engine_queue_s: float | None
    engine_prefill_s: float | None
    engine_decode_s: float | None
    preemptions: int | None
    late_gaps: int
    chunks: int
    bytes_out: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    estimated: bool
    truncated_tokens: int
    retransmits: int | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class RequestRow:
    request_id: str
    at: datetime
    model: str
    lane: str
    release: int | None
    replica: str
    outcome: str
    status: int
    ttft_s: float | None
    e2e_s: float | None


def find_request(request_id: str) -> RequestView | None:
    """By the gateway's id, or by the newest request that bore it as its `x-request-id`."""
    row = RequestRecord.objects.filter(request_id=request_id).order_by("-at").first()
    return None if row is None else _view(row)


def find_by_tag(tag: str, *, now: datetime) -> str | None:
    """The id of the newest request of the last hour that the caller called so."""
    rows = RequestRecord.objects.filter(at__gt=now - RECENT, at__lte=now, tag=tag).order_by("-at")
    return rows.values_list("request_id", flat=True).first()


def list_failures(*, now: datetime, limit: int = 50) -> tuple[RequestRow, ...]:
    """Those of the last hour that failed by our fault or were refused, newest first."""
    rows = RequestRecord.objects.filter(at__gt=now - RECENT, at__lte=now)
    failed = rows.exclude(outcome__in=("ok", "client_gone", "client_error")).order_by("-at")
    fields = RequestRow.__dataclass_fields__
    return tuple(RequestRow(*values) for values in failed.values_list(*fields)[:limit])


def _view(row: RequestRecord) -> RequestView:
    same = [name for name in RequestView.__dataclass_fields__ if name not in _MADE]
    times = {name: getattr(row, name) for name in same if name.endswith("_s")}
    return RequestView(
        **{name: getattr(row, name) for name in same},
        attempts=tuple(_attempt(entry) for entry in row.tries if _is_entry(entry, 3)),
        obstacles=tuple(
            Obstacle(str(entry[0]), float(entry[1])) for entry in row.waits if _is_entry(entry, 2)
        ),
        spans=lay_out(times, e2e_s=row.e2e_s),
        flags=tuple(str(flag) for flag in row.flags),
    )


_MADE = frozenset({"attempts", "obstacles", "spans", "flags"})


def _attempt(entry: list[object]) -> Attempt:
    replica, sent_s, result = entry
    return Attempt(str(replica), float(str(sent_s)), str(result))


def _is_entry(entry: object, length: int) -> bool:
    """What gateways of another version wrote may have another shape."""
    return isinstance(entry, list) and len(entry) == length
