"""Cells and records of requests of the seeded models, as a slow replica and a new release leave them."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

from pool.domain.cells import Cell, SeriesKey
from pool.domain.histogram import Histogram
from pool.models import RequestRecord
from pool.telemetry.store import add_cells, add_requests

MODEL = "qwen2.5-7b"
REPLICAS = {1: ("rk3m9d2q71", "rb5y1h8z3e"), 2: ("rq0j6s4u9g",)}
REGIONS = ("de", "us", "jp")
LANES = ("short", "mid", "long")
_SCALE_S = {"short": 0.12, "mid": 0.45, "long": 1.6}
_SLOW = "rb5y1h8z3e"


def seed_latency(*, now: datetime, span: timedelta = timedelta(minutes=6), every_s: int = 2) -> None:
    draw = random.Random(7)
    cells: dict[tuple[SeriesKey, datetime], Cell] = {}
    records: list[RequestRecord] = []
    start_s, end_s = int((now - span).timestamp()), int(now.timestamp()) - 2
    for at_s in range(start_s, end_s, every_s):
        at = datetime.fromtimestamp(at_s, tz=UTC)
        for _ in range(draw.randint(2, 6)):
            record = _make_record(draw, at, len(records))
            records.append(record)
            for key in _keys_of(record):
                cells.setdefault((key, at), Cell()).add(_cell_of(record))
    add_cells(cells)
    add_requests(records)


def make_cells(
    model: str, *, now: datetime, span: timedelta = timedelta(minutes=6)
) -> dict[tuple[SeriesKey, datetime], Cell]:
    """Of another model with the same traffic: each second's, for tests that read no record."""
    draw = random.Random(11)
    cells: dict[tuple[SeriesKey, datetime], Cell] = {}
    end_s = int(now.timestamp())
    for at_s in range(end_s - int(span.total_seconds()), end_s - 2, 2):
        at = datetime.fromtimestamp(at_s, tz=UTC)
        for number in range(draw.randint(2, 6)):
            record = _make_record(draw, at, number)
            record.model, record.replica = model, f"rgray000{record.release}"
            for key in _keys_of(record):
                cells.setdefault((key, at), Cell()).add(_cell_of(record))
    return cells


def _make_record(draw: random.Random, ended_at: datetime, number: int) -> RequestRecord:
    release = 2 if draw.random() < 0.4 else 1
    replica, lane = draw.choice(REPLICAS[release]), draw.choices(LANES, (6, 3, 1))[0]
    wave = 1 + 0.5 * math.sin(ended_at.timestamp() / 40)
    ttft_s = _SCALE_S[lane] * wave * draw.lognormvariate(0, 0.35) * (0.7 if release == 2 else 1)
    slow = replica == _SLOW and draw.random() < 0.25
    ttft_s *= 8 if slow else 1
    tokens = draw.randint(20, 400)
    e2e_s = ttft_s + tokens * 0.012
    return RequestRecord(
        request_id=f"req-{number:06d}",
        at=ended_at - timedelta(seconds=e2e_s),
        model=MODEL,
        lane=lane,
        release=release,
        wished_release=release,
        replica=replica,
        node="gpu-b" if slow else "gpu-a",
        key="0f3c9a7712aa",
        tier="vip" if draw.random() < 0.2 else "standard",
        label="finance" if slow and draw.random() < 0.8 else "",
        region=draw.choice(REGIONS),
        status=200,
        outcome="ok",
        attempts=1,
        stream=True,
        tokenize_s=0.002,
        queue_s=ttft_s * 0.25,
        first_byte_s=ttft_s * 0.7,
        decode_s=e2e_s - ttft_s,
        stream_s=0.001,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        longest_gap_s=0.03,
        engine_queue_s=ttft_s * 0.2,
        engine_prefill_s=ttft_s * 0.4,
        engine_decode_s=(e2e_s - ttft_s) * 0.95,
        prompt_tokens=draw.randint(40, 3000),
        cached_tokens=0 if slow else 64,
        output_tokens=tokens,
    )


def _keys_of(record: RequestRecord) -> tuple[SeriesKey, SeriesKey]:
    own = SeriesKey(record.model, record.release or 0, record.replica, record.lane, record.tier, record.label)
    return own, SeriesKey(record.model, region=record.region)


def _cell_of(record: RequestRecord) -> Cell:
    names = ("tokenize_s", "queue_s", "first_byte_s", "decode_s", "stream_s", "e2e_s", "engine_queue_s",
             "engine_prefill_s", "engine_decode_s")  # fmt: skip
    tokens = record.output_tokens or 1
    return Cell(
        counts={
            "requests": 1,
            "joined": 1,
            "output_tokens": tokens,
            "prompt_tokens": record.prompt_tokens or 0,
        },
        sums={name: float(getattr(record, name)) for name in names} | {"joined_e2e_s": record.e2e_s or 0.0},
        outcomes={"ok": 1},
        stages={
            "queue": Histogram.of([record.queue_s or 0.0]),
            "ttft": Histogram.of([record.ttft_s or 0.0]),
            "e2e": Histogram.of([record.e2e_s or 0.0]),
            "per_token": Histogram.of([(record.e2e_s or 0.0) / tokens]),
            "itl": Histogram.of([0.012] * 8),
        },
    )


HOSTILE = "'\"><img src=x onerror=alert(1)></script>"


def seed_hostile(*, now: datetime) -> None:
    """Requests whose callers chose every name that they may choose, badly."""
    draw = random.Random(9)
    at = datetime.fromtimestamp(int(now.timestamp()) - 20, tz=UTC)
    record = _make_record(draw, at, 0)
    record.request_id, record.label, record.region = "<script>alert(2)</script>", HOSTILE, "<b>de</b>"
    record.lane, record.replica = "=HYPERLINK(1)", "<i>"
    cells = {(key, at): _cell_of(record) for key in _keys_of(record)}
    add_cells(cells)
    add_requests([record])
