"""The whole pool at a glance: what the first page and `status/` show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from pool.models import LoopLease
from pool.queries.ages import Age, age_of
from pool.queries.gateways import GatewayRow, TableState, find_table_state, list_gateways
from pool.queries.models import ModelRow, list_models
from pool.queries.nodes import NodeRow, list_nodes
from pool.queries.replicas import ReplicaRow, list_live_replicas


@dataclass(frozen=True)
class LoopRow:
    name: str
    beat: Age
    until: datetime
    report: dict[str, object]


@dataclass(frozen=True)
class Counts:
    nodes: int
    nodes_ready: int
    devices: int
    devices_usable: int
    models: int
    replicas_wanted: int
    replicas_ready: int
    replicas_coming: int
    replicas_failed: int
    gateways: int
    """Those that beat within three seconds."""


@dataclass(frozen=True)
class Overview:
    at: datetime
    nodes: tuple[NodeRow, ...]
    replicas: tuple[ReplicaRow, ...]
    gateways: tuple[GatewayRow, ...]
    models: tuple[ModelRow, ...]
    loops: tuple[LoopRow, ...]
    table: TableState | None
    """The newest routing table; None before the first start has made it."""
    counts: Counts


def load_overview(*, now: datetime) -> Overview:
    """16 queries, whatever the size of the pool."""
    nodes = list_nodes(now=now)
    replicas = list_live_replicas(now=now)
    gateways = list_gateways(now=now)
    models = list_models()
    return Overview(
        at=now,
        nodes=nodes,
        replicas=replicas,
        gateways=gateways,
        models=models,
        loops=_load_loops(now=now),
        table=find_table_state(),
        counts=_count(nodes, replicas, gateways, models),
    )


def _load_loops(*, now: datetime) -> tuple[LoopRow, ...]:
    return tuple(
        LoopRow(name=row.name, beat=age_of(row.beat_at, now=now), until=row.until, report=row.report)
        # Periodic jobs keep their last run in the same table (`services/runs.py`); they beat by the hour.
        for row in LoopLease.objects.exclude(name__startswith="job:").order_by("name")
    )


def _count(
    nodes: tuple[NodeRow, ...],
    replicas: tuple[ReplicaRow, ...],
    gateways: tuple[GatewayRow, ...],
    models: tuple[ModelRow, ...],
) -> Counts:
    phases = Counter(replica.phase for replica in replicas)
    devices = [device for node in nodes for device in node.devices]
    return Counts(
        nodes=len(nodes),
        nodes_ready=sum(node.phase == "ready" for node in nodes),
        devices=len(devices),
        devices_usable=sum(device.usable for device in devices),
        models=len(models),
        replicas_wanted=sum(model.replicas.wanted for model in models),
        replicas_ready=phases["ready"],
        replicas_coming=sum(phases[phase] for phase in ("pending", "starting", "loading", "warming")),
        replicas_failed=phases["failed"],
        gateways=sum(gateway.gone_at is None and gateway.seen.state == "measured" for gateway in gateways),
    )
