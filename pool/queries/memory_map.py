"""What is in the KV cache and in the memory of each replica now, and how much prompts find of what was before.

Figures of an engine come from its newest samples, else from what it printed at its start; increases are of the last
five minutes. What nobody told is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet

from pool.domain.gauges import Gauge, Subject
from pool.domain.memory_map import KvFill, plain_tail, read_fill
from pool.models import Replica, Runtime
from pool.queries.ages import Age, age_of
from pool.queries.cells import CellFilter, find_series, sum_counts
from pool.queries.gauges import AHEAD, find_subjects, newest_gauges, sum_counters

WINDOW = timedelta(minutes=5)
Counts = Mapping[str, float]
_COUNTS = ("prompt_tokens", "cached_tokens", "requests")
PHASES = ("starting", "loading", "warming", "ready", "draining", "failed")


@dataclass(frozen=True)
class PrefixHits:
    """Prompt tokens that a prefix cache held already. None: nobody told."""

    engine_tokens: float | None
    """Prompt tokens that the engine looked up."""
    engine_hits: float | None
    engine_ratio: float | None
    gateway_tokens: int
    """Prompt tokens of answers that the gateway saw; an engine's count where it gave one, else an estimate."""
    gateway_hits: int | None
    """Of these, what answers called cached; None: no answer told."""
    gateway_ratio: float | None
    requests: int


@dataclass(frozen=True)
class ReplicaMemory:
    """Blocks are means of the newest second; bytes are of one device of the replica."""

    id: str
    model: str
    release: int
    lane: str | None
    node: str | None
    phase: str
    generation: int
    device_uuids: tuple[str, ...]
    engine_kind: str | None
    measured: Age
    """When the engine's state was last sampled."""
    kv_blocks: float | None
    """All but the null block."""
    kv_used_blocks: float | None
    kv_shared_blocks: float | None
    """Part of the used ones: of more than one request."""
    kv_reusable_blocks: float | None
    kv_free_blocks: float | None
    kv_used_ratio: float | None
    kv_held_tokens: float | None
    """What the used blocks fit."""
    kv_tail_tokens: float | None
    """Of these, not filled."""
    kv_tail_ratio: float | None
    """Fragmentation of kind `kv_tail`; 0 under 64 blocks."""
    largest_free_run_blocks: float | None
    allocator_ratio: float | None
    """Fragmentation of kind `allocator`; None where there is no CUDA."""
    weights_bytes: float | None
    kv_bytes: float | None
    allocated_bytes: float | None
    reserved_bytes: float | None
    inactive_split_bytes: float | None
    rss_bytes: float | None
    window_s: float
    preemptions: float | None
    major_faults: float | None
    prefix: PrefixHits


@dataclass(frozen=True)
class LanePrefix:
    model: str
    lane: str
    prefix: PrefixHits


@dataclass(frozen=True)
class ModelMemory:
    replicas: tuple[ReplicaMemory, ...]
    lanes: tuple[LanePrefix, ...]
    window_s: float


@dataclass(frozen=True)
class _Samples:
    """Of all subjects of one replica: the newest gauges, and increases over the window."""

    at: datetime | None
    gauges: Mapping[str, Gauge]
    increases: Counts


def load_memory(*, now: datetime, model: str = "") -> ModelMemory:
    """Of all models where `model` is empty. 7 queries."""
    rows = _find_replicas().filter(release__model__name=model) if model else _find_replicas()
    return _load(list(rows), CellFilter(model=model), now=now)


def find_replica_memory(replica_id: str, *, now: datetime) -> ReplicaMemory | None:
    """In any phase. 7 queries."""
    rows = Replica.objects.filter(pk=replica_id).select_related("release__model", "node")
    return next(iter(_load(list(rows), CellFilter(replicas=(replica_id,)), now=now).replicas), None)


def fill_of(row: ReplicaMemory) -> KvFill | None:
    """None where the engine did not tell all three states."""
    used, reusable, free = row.kv_used_blocks, row.kv_reusable_blocks, row.kv_free_blocks
    if used is None or reusable is None or free is None:
        return None
    return KvFill(
        used_blocks=used,
        reusable_blocks=reusable,
        free_blocks=free,
        tail_ratio=plain_tail(row.kv_tail_tokens, row.kv_held_tokens),
    )


def _load(rows: Sequence[Replica], traffic_of: CellFilter, *, now: datetime) -> ModelMemory:
    subjects = find_subjects("replica", names=[row.pk for row in rows])
    samples = _load_samples(subjects, now=now)
    traffic = _load_traffic(traffic_of, now=now)
    kinds = dict(Runtime.objects.values_list("name", "kind"))
    replicas = tuple(
        _replica(row, samples.get(row.pk, _NOTHING), traffic, kind=kinds.get(row.release.runtime), now=now)
        for row in rows
    )
    return ModelMemory(replicas, _lanes(replicas, traffic), WINDOW.total_seconds())


def _find_replicas() -> QuerySet[Replica]:
    rows = Replica.objects.filter(phase__in=PHASES).select_related("release__model", "node")
    return rows.order_by("release__model__name", "release__number", "lane", "created_at", "id")


def _load_samples(subjects: Mapping[int, Subject], *, now: datetime) -> dict[str, _Samples]:
    newest = newest_gauges(subjects, now=now)
    increases = sum_counters(subjects, now - WINDOW, now + AHEAD, 10)
    found: dict[str, _Samples] = {}
    # A replica that changed its lane or release has several subjects: the newest tells, increases add up.
    for number in sorted(subjects, key=lambda one: newest[one][0].timestamp() if one in newest else 0.0):
        name = subjects[number].name
        before = found.get(name, _NOTHING)
        at, gauges = newest.get(number, (before.at, before.gauges))
        found[name] = _Samples(at, gauges, _sum(before.increases, increases.get(number, {})))
    return found


def _sum(one: Counts, other: Counts) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in (*one, *other)}


def _load_traffic(wanted: CellFilter, *, now: datetime) -> dict[tuple[str, str, str], Counts]:
    """By model, lane and replica."""
    series = find_series(wanted)
    sums = sum_counts(series, _COUNTS, start=now - WINDOW, end=now + AHEAD, resolution_s=10)
    found: dict[tuple[str, str, str], Counts] = {}
    for number, counts in sums.items():
        key = (series[number].model, series[number].lane, series[number].replica)
        found[key] = _sum(found.get(key, {}), counts)
    return found


def _replica(
    row: Replica,
    samples: _Samples,
    traffic: Mapping[tuple[str, str, str], Counts],
    *,
    kind: str | None,
    now: datetime,
) -> ReplicaMemory:
    gauges, increases = samples.gauges, samples.increases
    fill = read_fill(gauges)
    printed = row.figures.get("printed")
    printed = printed if isinstance(printed, dict) else {}
    return ReplicaMemory(
        id=row.pk,
        model=row.release.model.name,
        release=row.release.number,
        lane=row.lane or None,
        node=row.node.name if row.node else None,
        phase=row.phase,
        generation=row.generation,
        device_uuids=tuple(row.device_uuids),
        engine_kind=kind,
        measured=age_of(samples.at, now=now),
        kv_blocks=_mean(gauges, "kv_blocks", fill.blocks if fill else None),
        kv_used_blocks=_mean(gauges, "kv_used_blocks"),
        kv_shared_blocks=_mean(gauges, "kv_shared_blocks"),
        kv_reusable_blocks=fill.reusable_blocks if fill else None,
        kv_free_blocks=fill.free_blocks if fill else None,
        kv_used_ratio=_used_ratio(gauges),
        kv_held_tokens=_mean(gauges, "kv_held_tokens"),
        kv_tail_tokens=_mean(gauges, "kv_tail_tokens"),
        kv_tail_ratio=_mean(gauges, "kv_tail_ratio"),
        largest_free_run_blocks=_mean(gauges, "largest_free_run_blocks"),
        allocator_ratio=_mean(gauges, "allocator_ratio"),
        weights_bytes=_mean(gauges, "weights_bytes", _number(printed.get("model_memory_bytes"))),
        kv_bytes=_mean(gauges, "kv_bytes", _number(printed.get("kv_cache_bytes"))),
        allocated_bytes=_mean(gauges, "allocated_bytes"),
        reserved_bytes=_mean(gauges, "reserved_bytes"),
        inactive_split_bytes=_mean(gauges, "inactive_split_bytes"),
        rss_bytes=_mean(gauges, "rss_bytes"),
        window_s=WINDOW.total_seconds(),
        preemptions=increases.get("preemptions"),
        major_faults=increases.get("major_faults"),
        prefix=_hits([increases], [cell for key, cell in traffic.items() if key[2] == row.pk]),
    )


def _mean(gauges: Mapping[str, Gauge], name: str, otherwise: float | None = None) -> float | None:
    gauge = gauges.get(name)
    return otherwise if gauge is None else gauge.mean


def _used_ratio(gauges: Mapping[str, Gauge]) -> float | None:
    used, blocks = gauges.get("kv_used_blocks"), gauges.get("kv_blocks")
    return used.mean / blocks.mean if used and blocks and blocks.mean > 0 else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _lanes(
    replicas: Sequence[ReplicaMemory], traffic: Mapping[tuple[str, str, str], Counts]
) -> tuple[LanePrefix, ...]:
    """Of the engines' counts only those of replicas that serve one lane: the others do not tell lanes apart."""
    lanes = sorted({(model, lane) for model, lane, _ in traffic if lane})
    return tuple(
        LanePrefix(
            model,
            lane,
            _hits(
                [_engine_counts(one.prefix) for one in replicas if (one.model, one.lane) == (model, lane)],
                [cell for key, cell in traffic.items() if key[:2] == (model, lane)],
            ),
        )
        for model, lane in lanes
    )


def _engine_counts(prefix: PrefixHits) -> dict[str, float]:
    told = {"prefix_queries_tokens": prefix.engine_tokens, "prefix_hits_tokens": prefix.engine_hits}
    return {name: count for name, count in told.items() if count is not None}


def _hits(increases: Sequence[Counts], traffic: Sequence[Counts]) -> PrefixHits:
    asked = [one["prefix_queries_tokens"] for one in increases if "prefix_queries_tokens" in one]
    hits = sum(one.get("prefix_hits_tokens", 0.0) for one in increases)
    prompt, cached, requests = (round(sum(one.get(name, 0) for one in traffic)) for name in _COUNTS)
    # An answer need not tell what was cached: a 0 counts only where the engine found nothing either.
    is_told = cached > 0 or bool(asked and not hits)
    return PrefixHits(
        engine_tokens=sum(asked) if asked else None,
        engine_hits=hits if asked else None,
        engine_ratio=_ratio(hits, sum(asked)) if asked else None,
        gateway_tokens=prompt,
        gateway_hits=cached if is_told else None,
        gateway_ratio=_ratio(cached, prompt) if is_told else None,
        requests=requests,
    )


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


_NOTHING = _Samples(None, {}, {})
