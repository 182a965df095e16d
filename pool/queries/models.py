"""Models with lanes, versions, releases and plans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch, QuerySet

from pool.domain.gateway_settings import ModelSettings, read_model_settings
from pool.models import Model, Plan, PlanInForce, Release, Replica, Version, VersionPresence
from pool.queries.lanes import LaneRow, lane_row
from pool.queries.plans import PlanRow, plan_row

PLANS_SHOWN = 50
COMING_PHASES = frozenset({"pending", "starting", "loading", "warming"})


@dataclass(frozen=True)
class ReplicaCount:
    """Replicas of a release in a lane: the wish against what is there."""

    lane: str | None
    wanted: int
    ready: int
    coming: int
    failed: int
    draining: int


@dataclass(frozen=True)
class ModelRow:
    name: str
    owner: str
    description: str
    created_at: datetime
    lanes: tuple[LaneRow, ...]
    gateway: ModelSettings
    plan: PlanRow | None
    """In force; None: the model has no traffic yet."""
    replicas: ReplicaCount
    """Over all releases and lanes."""


@dataclass(frozen=True)
class PresenceRow:
    node: str
    phase: str
    path: str
    reason: str
    reason_text: str
    full_check_wanted: bool
    verified_at: datetime | None


@dataclass(frozen=True)
class VersionRow:
    name: str
    source: str
    revision: str
    manifest: dict[str, object] | None
    facts: dict[str, object] | None
    remote_code_approved: bool
    retired_at: datetime | None
    created_at: datetime
    presences: tuple[PresenceRow, ...]


@dataclass(frozen=True)
class ReleaseRow:
    number: int
    version: str
    runtime: str
    profiles: dict[str, str]
    """Lane → profile; the empty lane stands for all lanes."""
    comment: str
    created_by: str
    created_at: datetime
    weight_percent: int
    """In the plan in force, before lanes."""
    counts: tuple[ReplicaCount, ...]


@dataclass(frozen=True)
class ModelView:
    model: ModelRow
    versions: tuple[VersionRow, ...]
    releases: tuple[ReleaseRow, ...]
    """Newest first."""
    plans: tuple[PlanRow, ...]
    """Newest first, at most 50."""


def list_models(*, limit: int | None = None, offset: int = 0) -> tuple[ModelRow, ...]:
    """By name. 6 queries."""
    rows = Model.objects.order_by("name")
    return _model_rows(rows if limit is None else rows[offset : offset + limit])


def find_model(name: str) -> ModelRow | None:
    """6 queries."""
    return next(iter(_model_rows(Model.objects.filter(name=name))), None)


def find_model_view(name: str) -> ModelView | None:
    """All that the model's page shows. 16 queries."""
    model = find_model(name)
    if model is None:
        return None
    in_force = model.plan.number if model.plan else None
    plans = Plan.objects.filter(model__name=name).order_by("-number")[:PLANS_SHOWN]
    return ModelView(
        model=model,
        versions=list_versions(name),
        releases=list_releases(name),
        plans=tuple(plan_row(plan, in_force=in_force) for plan in plans),
    )


def list_versions(model: str, *, limit: int = 500, offset: int = 0) -> tuple[VersionRow, ...]:
    """Newest first. 2 queries."""
    rows = Version.objects.filter(model__name=model).order_by("-id").prefetch_related(_presences())
    return tuple(_version_row(row) for row in rows[offset : offset + limit])


def find_version(model: str, name: str) -> VersionRow | None:
    """2 queries."""
    rows = Version.objects.filter(model__name=model, name=name).prefetch_related(_presences())
    return next((_version_row(row) for row in rows), None)


def list_releases(model: str, *, limit: int = 500, offset: int = 0) -> tuple[ReleaseRow, ...]:
    """Newest first. 6 queries."""
    return _release_rows(Release.objects.filter(model__name=model), limit=limit, offset=offset)


def find_release(model: str, number: int) -> ReleaseRow | None:
    """6 queries."""
    rows = Release.objects.filter(model__name=model, number=number)
    return next(iter(_release_rows(rows, limit=1, offset=0)), None)


def _model_rows(rows: QuerySet[Model]) -> tuple[ModelRow, ...]:
    models = list(rows.prefetch_related("lanes", "releases__scales"))
    ids = [model.pk for model in models]
    plans = {
        row.model_id: row.plan for row in PlanInForce.objects.filter(model__in=ids).select_related("plan")
    }
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for model_id, phase in (
        Replica.objects.filter(release__model__in=ids)
        .exclude(phase="stopped")
        .values_list("release__model_id", "phase")
    ):
        found[model_id][phase] += 1
    return tuple(
        ModelRow(
            name=model.name,
            owner=model.owner,
            description=model.description,
            created_at=model.created_at,
            lanes=tuple(lane_row(lane) for lane in model.lanes.all()),
            gateway=read_model_settings(model.gateway),
            plan=plan_row(plans[model.pk], in_force=plans[model.pk].number) if model.pk in plans else None,
            replicas=_count(
                None,
                wanted=sum(s.replicas for release in model.releases.all() for s in release.scales.all()),
                phases=found[model.pk],
            ),
        )
        for model in models
    )


def _count(lane: str | None, *, wanted: int, phases: Counter[str]) -> ReplicaCount:
    return ReplicaCount(
        lane=lane,
        wanted=wanted,
        ready=phases["ready"],
        coming=sum(phases[phase] for phase in COMING_PHASES),
        failed=phases["failed"],
        draining=phases["draining"],
    )


def _presences() -> Prefetch[str, QuerySet[VersionPresence], str]:
    return Prefetch("presences", VersionPresence.objects.select_related("node").order_by("node__name"))


def _version_row(row: Version) -> VersionRow:
    return VersionRow(
        name=row.name,
        source=row.source,
        revision=row.revision,
        manifest=row.manifest,
        facts=row.facts,
        remote_code_approved=row.remote_code_approved,
        retired_at=row.retired_at,
        created_at=row.created_at,
        presences=tuple(
            PresenceRow(
                node=presence.node.name,
                phase=presence.phase,
                path=presence.path,
                reason=presence.reason_code,
                reason_text=presence.reason_text,
                full_check_wanted=presence.full_check_wanted,
                verified_at=presence.verified_at,
            )
            for presence in row.presences.all()
        ),
    )


def _release_rows(rows: QuerySet[Release], *, limit: int, offset: int) -> tuple[ReleaseRow, ...]:
    releases = list(
        rows.select_related("version")
        .prefetch_related("profiles__profile", "scales")
        .order_by("-number")[offset : offset + limit]
    )
    found = _phases_by_lane([release.pk for release in releases])
    model_ids = {release.model_id for release in releases}
    weights = dict(Plan.objects.filter(in_force__model__in=model_ids).values_list("model_id", "weights"))
    return tuple(
        ReleaseRow(
            number=row.number,
            version=row.version.name,
            runtime=row.runtime,
            profiles={use.lane: use.profile.name for use in row.profiles.all()},
            comment=row.comment,
            created_by=row.created_by,
            created_at=row.created_at,
            weight_percent=int(weights.get(row.model_id, {}).get(str(row.number), 0)),
            counts=tuple(
                _count(scale.lane or None, wanted=scale.replicas, phases=found[row.pk, scale.lane])
                for scale in sorted(row.scales.all(), key=lambda scale: scale.lane)
            ),
        )
        for row in releases
    )


def _phases_by_lane(release_ids: Iterable[int]) -> dict[tuple[int, str], Counter[str]]:
    found: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    rows = Replica.objects.filter(release__in=list(release_ids)).exclude(phase="stopped")
    for release_id, lane, phase in rows.values_list("release_id", "lane", "phase"):
        found[release_id, lane][phase] += 1
    return found
