"""What a rollout would do to each device's memory, from what is measured now (`pool/domain/fit_report.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pool.domain.fit_report import FitReport, Held, Holder, Pool, Role, Wanted, plan_fit
from pool.domain.memory_map import MemoryOwner
from pool.domain.rollout import ACTIVE, Phase
from pool.models import Plan, Release, Replica, Rollout
from pool.queries.device_memory import DeviceSplit, load_pool_memory
from pool.queries.memory_map import load_memory
from pool.queries.needs import NoNeed, find_need
from pool.queries.placement import STALE_AFTER, Inventory, load_inventory
from pool.queries.start_times import find_start, find_stop

KEPT_WARM = timedelta(minutes=30)
"""The release that a promotion replaced is no idle one for so long (defaults)."""
_HOLDING = ("starting", "loading", "warming", "ready", "draining")


def load_fit_report(
    candidate: Release, stable: Release, scales: Sequence[tuple[str, int]], *, steps: int, now: datetime
) -> FitReport:
    """`scales`: (lane, replicas) of the candidate that the rollout asks for; those that run already count."""
    inventory = replace(load_inventory(now), claims={})
    rows = list(
        Replica.objects.filter(phase__in=_HOLDING, node__isnull=False).select_related(
            "release__model", "node"
        )
    )
    wanted = [_wanted(inventory, rows, candidate, lane, count) for lane, count in scales]
    lanes = list(dict.fromkeys(row.lane for row in rows if row.release_id == stable.pk)) or [""]
    starts = [find_start(stable, lane) for lane in lanes]
    known = [start for start in starts if start is not None]
    splits = load_pool_memory(load_memory(now=now).replicas, now=now).devices
    pool = Pool(
        holders=_holders(rows, splits, candidate, stable, now),
        indexes={(split.node, split.uuid): split.index for split in splits},
        ages_s={(split.node, split.uuid): split.measured.age_s for split in splits},
        foreign_bytes={
            (split.node, split.uuid): _size_of(split, MemoryOwner.FOREIGN)
            for split in splits
            if split.total_bytes is not None
        },
        stop=find_stop(stable),
        stable_start=max(known, key=lambda one: one.seconds) if len(known) == len(starts) else None,
    )
    return plan_fit(wanted, pool, steps=steps)


def _wanted(
    inventory: Inventory, rows: Sequence[Replica], candidate: Release, lane: str, count: int
) -> Wanted:
    """What is asked for and does not hold a device yet."""
    mine = sum(row.release_id == candidate.pk and row.lane == lane and row.wish == "run" for row in rows)
    need = find_need(inventory, candidate, lane)
    if isinstance(need, NoNeed):
        return Wanted(lane=lane, count=count, need=None, why=need.reason, is_unknown=need.is_unknown)
    # A row that is never saved: views are made for a replica.
    views = inventory.view_for(Replica(pk="", release=candidate, lane=lane))
    return Wanted(
        lane=lane,
        count=max(0, count - mine),
        need=need,
        nodes=tuple(views),
        start=find_start(candidate, lane),
    )


def _holders(
    rows: Sequence[Replica],
    splits: Sequence[DeviceSplit],
    candidate: Release,
    stable: Release,
    now: datetime,
) -> tuple[Holder, ...]:
    by_device = {(split.node, split.uuid): split for split in splits}
    needed = _needed_releases(now) | {candidate.pk}
    return tuple(
        Holder(
            replica=row.pk,
            model=row.release.model.name,
            release=row.release.number,
            lane=row.lane,
            role=_role(row, stable, needed, now),
            is_ready=row.phase == "ready" and row.wish == "run",
            places=_places(row, by_device),
        )
        for row in rows
    )


def _role(row: Replica, stable: Release, needed: frozenset[int], now: datetime) -> Role:
    if row.phase == "draining" or row.wish == "stop":
        return Role.LEAVING
    if row.release_id == stable.pk:
        return Role.STABLE
    is_idle = row.phase == "ready" and row.release_id not in needed and _runs_nothing(row, now)
    return Role.IDLE if is_idle else Role.OTHER


def _runs_nothing(row: Replica, now: datetime) -> bool:
    """What was not measured lately is not called idle."""
    if row.load_measured_at is None or row.load_measured_at < now - STALE_AFTER:
        return False
    return bool(row.load.get("running") == 0 and row.load.get("waiting") == 0)


def _needed_releases(now: datetime) -> frozenset[int]:
    """Ids of releases with a weight, a pin or a shadow in a plan in force, or part of a rollout. 3 queries."""
    named: set[tuple[int, int]] = set()
    for plan in Plan.objects.filter(in_force__isnull=False):
        weights = [plan.weights, *plan.lanes.values()]
        numbers = {int(number) for one in weights for number, percent in one.items() if percent}
        numbers |= set(plan.pins.values()) | ({plan.shadow["release"]} if plan.shadow else set())
        named |= {(plan.model_id, number) for number in numbers}
    found = {
        key
        for key, model, number in Release.objects.values_list("pk", "model_id", "number")
        if (model, number) in named
    }
    recent = Rollout.objects.filter(phase__in=ACTIVE) | Rollout.objects.filter(
        phase=Phase.PROMOTED, ended_at__gt=now - KEPT_WARM
    )
    for pair in recent.values_list("candidate_id", "stable_id"):
        found |= set(pair)
    return frozenset(found)


def _places(row: Replica, by_device: Mapping[tuple[str, str], DeviceSplit]) -> Held:
    node = row.node.name if row.node else ""
    return {(node, uuid): _held(row.pk, by_device.get((node, uuid))) for uuid in row.device_uuids}


def _held(replica: str, split: DeviceSplit | None) -> int | None:
    """Alone on a device a replica holds all that was measured as ours; beside others what it told, and its share of
    what nobody told. None: neither is known."""
    if split is None or split.total_bytes is None:
        return None
    ours = sum(part.size_bytes for part in split.parts if part.owner not in _NOT_OURS)
    if split.replicas == (replica,):
        return ours or None
    told = sum(
        part.size_bytes for part in split.parts if part.replica == replica and part.owner not in _NOT_OURS
    )
    if not told:
        return None
    other = _size_of(split, MemoryOwner.ENGINE_OTHER)
    return told + other // max(1, len(split.replicas))


def _size_of(split: DeviceSplit, owner: MemoryOwner) -> int:
    return sum(part.size_bytes for part in split.parts if part.owner is owner)


_NOT_OURS = (MemoryOwner.PROMISED, MemoryOwner.FOREIGN, MemoryOwner.FREE)
