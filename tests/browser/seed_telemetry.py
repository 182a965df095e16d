"""An hour of traffic of the seeded pool in cells and records: two releases, one of them worse, and a busy device."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta

from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.domain.histogram import Histogram
from pool.models import Device, RequestRecord
from pool.telemetry.store import add_cells, add_gauges, add_requests

MODEL = "qwen2.5-7b"
REPLICA = "rk3m9d2q71"
STEP = timedelta(seconds=30)


def seed_telemetry(*, now: datetime, steps: int = 40) -> None:
    draw = random.Random(7)
    cells = {}
    for step in range(steps):
        at = now - step * STEP
        for lane, ttft_s, count in (("short", 0.21, 90), ("mid", 0.9, 14), ("long", 2.6, 4)):
            for release, factor in ((1, 1.0), (2, 1.25)):
                key = SeriesKey(MODEL, release, REPLICA, lane, "standard", "web")
                cells[key, at] = make_cell(draw, ttft_s * factor, count // release, step)
    add_cells(cells)
    seed_devices(now, steps)
    add_requests([make_record(now)])


def make_cell(draw: random.Random, ttft_s: float, count: int, step: int) -> Cell:
    wave = 1 + 0.4 * math.sin(step / 5)
    times = [ttft_s * wave * draw.lognormvariate(0, 0.35) for _ in range(count)]
    failed = count // 40
    return Cell(
        counts={
            "requests": count,
            "errors": failed,
            "prompt_tokens": count * 900,
            "output_tokens": count * 180,
            "empty": count // 30,
            "cut_by_length": count // 9,
        },
        sums={
            "queue_s": 0.02 * count,
            "first_byte_s": sum(times),
            "decode_s": 3.1 * count,
            "e2e_s": 3.4 * count,
        },
        outcomes={"ok": count - failed - count // 50, "upstream_failed": failed, "queue_full": count // 50},
        stages={
            "queue": Histogram.of([0.02] * count),
            "ttft": Histogram.of(times),
            "itl": Histogram.of([0.017] * count),
            "e2e": Histogram.of([one + 3.1 for one in times]),
            "per_token": Histogram.of([(one + 3.1) / 180 for one in times]),
        },
    )


def seed_devices(now: datetime, steps: int) -> None:
    cells = {}
    for number, device in enumerate(Device.objects.filter(kind="cuda").order_by("uuid")):
        for step in range(steps):
            cell = GaugeCell()
            cell.note("utilization_ratio", min(1.0, 0.35 + 0.3 * number + 0.25 * math.sin(step / 4 + number)))
            cell.note("pcie_tx_bytes_per_s", 2.1e9)
            cell.note("pcie_rx_bytes_per_s", 3.4e9 + 1e8 * step)
            cells[Subject("device", device.uuid, node=device.node.name), now - step * STEP] = cell
    add_gauges(cells)


def make_record(now: datetime) -> RequestRecord:
    return RequestRecord(
        request_id="0f3a-000001c4",
        at=now - timedelta(minutes=3),
        tag="trace-8812",
        model=MODEL,
        lane="mid",
        wished_release=1,
        release=2,
        replica=REPLICA,
        node="gpu-host-1",
        key="9f31c07a2b44",
        tier="standard",
        label="web",
        region="eu-west",
        status=200,
        outcome="ok",
        attempts=2,
        tries=[["rb5y1h8z3e", 0.31, "connect"], [REPLICA, 0.36, "ok"]],
        waits=[["lane_limit", 0.22], ["prefill", 0.09]],
        spilled=True,
        stream=True,
        tokenize_s=0.012,
        queue_s=0.348,
        first_byte_s=0.82,
        decode_s=2.94,
        stream_s=0.0,
        ttft_s=1.18,
        e2e_s=4.16,
        longest_gap_s=0.21,
        engine_queue_s=0.11,
        engine_prefill_s=0.63,
        engine_decode_s=2.91,
        preemptions=0,
        late_gaps=1,
        chunks=181,
        bytes_out=48_211,
        prompt_tokens=6_204,
        cached_tokens=4_096,
        output_tokens=180,
        retransmits=0,
        finish_reason="stop",
    )
