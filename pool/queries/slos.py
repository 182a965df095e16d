"""SLOs for pages, API and the loop that judges them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from pool.domain.ladder import Past, Step
from pool.domain.slo import SloSettings, read_settings
from pool.domain.slo_signals import SloRef
from pool.models import Alert, Lane, Restriction, Slo, SloSpan


@dataclass(frozen=True)
class SloRow:
    """`report`: what the last pass found; empty before the first. `held_until`: no automatic action until then."""

    id: int
    model: str
    lane: str
    tier: str
    label: str
    template: str
    phase: str
    settings: dict[str, object]
    figures: dict[str, object]
    report: dict[str, object]
    level: str
    """The highest of its open alerts; `normal` without one."""
    alerts: int
    held_until: datetime | None
    held_by: str
    created_at: datetime
    created_by: str
    changed_at: datetime


@dataclass(frozen=True)
class SpanPoint:
    at: datetime
    requests: int
    streams: int
    slow: int
    errors: int


@dataclass(frozen=True)
class HeldNow:
    """A restriction that holds, or one of the last hour."""

    id: int
    model: str
    lane: str
    dry_run: bool
    is_automatic: bool
    past: Past


_LEVELS = ("normal", "plan", "yellow", "orange", "red")


def list_slos(*, model: str = "", phase: str = "", limit: int = 500, offset: int = 0) -> tuple[SloRow, ...]:
    """By model, lane, tier and label. 2 queries."""
    rows = Slo.objects.select_related("model").order_by("model__name", "lane", "tier", "label", "id")
    if model:
        rows = rows.filter(model__name=model)
    rows = rows.filter(phase=phase) if phase else rows.exclude(phase="dismissed")
    return _rows(rows[offset : offset + limit])


def find_slo(slo_id: int) -> SloRow | None:
    found = _rows(Slo.objects.select_related("model").filter(pk=slo_id))
    return found[0] if found else None


def list_points(slo_ids: Iterable[int], *, start: datetime) -> dict[int, list[SpanPoint]]:
    """Spans since `start` in order, by SLO; times without requests are missing. 1 query."""
    found: dict[int, list[SpanPoint]] = {}
    rows = SloSpan.objects.filter(slo_id__in=list(slo_ids), at__gte=start).order_by("at")
    for slo, at, *counts in rows.values_list("slo_id", "at", "requests", "streams", "ttft_p99", "errors"):
        found.setdefault(slo, []).append(SpanPoint(at, *counts))
    return found


def count_slos() -> Mapping[str, int]:
    """By phase."""
    return dict(Slo.objects.values_list("phase").annotate(Count("pk")))


def list_active_slos() -> list[SloRef]:
    rows = Slo.objects.filter(phase="active").select_related("model").order_by("pk")
    return [as_ref(row) for row in rows]


def as_ref(row: Slo) -> SloRef:
    return SloRef(
        row.pk, row.model.name, row.lane, row.tier, row.label, read_settings(row.settings),
        counted_until=row.counted_until, held_until=row.held_until,
    )  # fmt: skip


def list_lanes_to_propose() -> list[tuple[str, str]]:
    """(model, lane) that have no SLO of their own, and no proposal that somebody dismissed."""
    known = set(Slo.objects.filter(tier="", label="").values_list("model_id", "lane"))
    lanes = Lane.objects.select_related("model").order_by("model__name", "position")
    return [(lane.model.name, lane.name) for lane in lanes if (lane.model_id, lane.name) not in known]


def list_held(automatic: str, *, since: datetime) -> list[HeldNow]:
    """Restrictions that hold, whoever made them, and those that `automatic` made since then or that ended since."""
    rows = Restriction.objects.filter(
        Q(ended_at=None)
        | Q(made_by=automatic, created_at__gte=since)
        | Q(made_by=automatic, ended_at__gte=since)
    )
    return [
        HeldNow(
            row.pk, row.model.name, row.lane, row.dry_run, row.made_by == automatic,
            Past(Step(row.kind), row.created_at, row.until, row.ended_at),
        )
        for row in rows.select_related("model")
    ]  # fmt: skip


def settings_of(row: SloRow) -> SloSettings:
    return read_settings(row.settings)


def _rows(rows: Any) -> tuple[SloRow, ...]:
    listed = list(rows)
    levels: dict[int, list[str]] = {}
    open_alerts = Alert.objects.filter(slo__in=[row.pk for row in listed], closed_at=None)
    for slo, level in open_alerts.values_list("slo_id", "level"):
        levels.setdefault(slo or 0, []).append(level)
    return tuple(
        SloRow(
            id=row.pk,
            model=row.model.name,
            lane=row.lane,
            tier=row.tier,
            label=row.label,
            template=row.template,
            phase=row.phase,
            settings=row.settings,
            figures=row.figures,
            report=row.report,
            level=max(levels.get(row.pk, ["normal"]), key=_LEVELS.index),
            alerts=len(levels.get(row.pk, ())),
            held_until=row.held_until,
            held_by=row.held_by,
            created_at=row.created_at,
            created_by=row.created_by,
            changed_at=row.changed_at,
        )
        for row in listed
    )
