"""An hour of samples of the seeded replicas up to now and some minutes ahead, and a block map as a worker puts it."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta

import redis
from django.conf import settings

from pool.domain.block_map import NOBODY, BlockOwner, pack_block_map
from pool.domain.cells import Cell, SeriesKey
from pool.domain.gauges import GaugeCell, Subject
from pool.models import RoutingState
from pool.telemetry.store import add_cells, add_gauges
from tests.factories import GIB
from tests.memory_seed import make_cell

QWEN, SMOL = "qwen2.5-7b", "smollm2"
BUSY, CALM, SIM = "rk3m9d2q71", "rx8w4c5v2p", "rq0j6s4u9g"
BLOCKS = 4832
BLOCK_TOKENS = 16
EVERY_S = 10
_ids = {
    BUSY: Subject("replica", BUSY, node="gpu-a", model=QWEN, release=1),
    CALM: Subject("replica", CALM, node="gpu-b", model=QWEN, release=1),
    SIM: Subject("replica", SIM, node="desk", model=SMOL, release=1),
}


def seed_memory(
    *, now: datetime, length: timedelta = timedelta(hours=1), fresh_for: timedelta = timedelta(0)
) -> None:
    start = now.replace(microsecond=0) - length
    seconds = int((length + fresh_for).total_seconds())
    cells = {}
    for offset in range(0, seconds, EVERY_S):
        at = start + timedelta(seconds=offset)
        cells[_ids[BUSY], at] = _busy_cell(offset)
        if not 1200 < offset < 1500:  # a gap: its worker was down
            cells[_ids[CALM], at] = _calm_cell(offset)
        cells[_ids[SIM], at] = make_cell(used=3, free=509, reusable=16, gauges={"rss_bytes": 0.2 * GIB})
    add_gauges(cells)
    for lane, prompt, cached in (
        ("short", 400_000, 371_000),
        ("mid", 700_000, 410_000),
        ("long", 90_000, 12_000),
    ):
        key = SeriesKey(QWEN, release=1, replica=BUSY, lane=lane, tier="standard")
        counts = {"requests": prompt // 900, "prompt_tokens": prompt, "cached_tokens": cached}
        add_cells({(key, now - timedelta(seconds=30)): Cell(counts=counts)})
    put_block_map(BUSY, now=now)


def _busy_cell(offset: int) -> GaugeCell:
    used = BLOCKS * (0.62 + 0.33 * math.sin(offset / 300))
    reusable = (BLOCKS - used) * 0.6
    cell = make_cell(
        used=used,
        reusable=reusable,
        free=BLOCKS - used - reusable,
        shared=used * 0.2,
        tail=0.06 + 0.03 * math.sin(offset / 90),
        gauges=_bytes(0.08 + 0.2 * offset / 4200),
        counters={
            "prefix_queries_tokens": 21_000.0,
            "prefix_hits_tokens": 17_100.0,
            "preemptions": 1.0 if used > BLOCKS * 0.93 else 0.0,
            "major_faults": 0.0,
        },
    )
    return cell


def _calm_cell(offset: int) -> GaugeCell:
    used = BLOCKS * (0.2 + 0.1 * math.sin(offset / 500))
    reusable = BLOCKS * 0.5
    return make_cell(
        used=used,
        reusable=reusable,
        free=BLOCKS - used - reusable,
        tail=0.18,
        gauges=_bytes(0.05),
        counters={"prefix_queries_tokens": 9_000.0, "prefix_hits_tokens": 8_600.0, "preemptions": 0.0},
    )


def _bytes(fragmented: float) -> dict[str, float]:
    reserved = 20.0 * GIB
    return {
        "rss_bytes": 6.4 * GIB,
        "reserved_bytes": reserved,
        "allocated_bytes": reserved * (0.95 - fragmented),
        "inactive_split_bytes": reserved * fragmented,
        "allocator_ratio": fragmented,
        "largest_free_run_blocks": 412.0,
    }


def put_block_map(
    replica: str, *, now: datetime, blocks: int = BLOCKS, requests: int = 31, name: str = "req"
) -> None:
    """As the replica's worker does twice a second while somebody looks; this one stays."""
    content = make_block_map(now=now, blocks=blocks, requests=requests, name=name)
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.set(_key(replica), content)


def make_block_map(*, now: datetime, blocks: int, requests: int, name: str = "req") -> bytes:
    chance = random.Random(7)
    states, owners = bytearray(b"\x00"), bytearray(NOBODY.to_bytes(2, "little"))
    held = [0] * requests
    while len(states) < blocks:
        owner = chance.randrange(requests) if requests else 0
        length = min(blocks - len(states), chance.choice((3, 9, 14, 40, 90)))
        state = chance.choice((3, 3, 3, 4, 2, 1) if requests else (1, 2))
        states += bytes([state]) * length
        owners += (owner if state >= 3 else NOBODY).to_bytes(2, "little") * length
        if state >= 3:
            held[owner] += length
    rows = tuple(
        BlockOwner(
            f"{name}-{index:04d}a9", count, count * BLOCK_TOKENS - index % BLOCK_TOKENS, index % BLOCK_TOKENS
        )
        for index, count in enumerate(held)
    )
    return pack_block_map(
        at_ms=int(now.timestamp() * 1000),
        age_s=0.4,
        block_tokens=BLOCK_TOKENS,
        states=bytes(states),
        owners=bytes(owners),
        requests=rows,
        free_runs={1: 12, 3: 25, 9: 40, 17: 22, 40: 9, 130: 1},
    )


def clear_memory() -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(*(_key(replica) for replica in _ids))


def _key(replica: str) -> str:
    return f"sluice:{RoutingState.objects.get(pk=1).installation}:blocks:{replica}"
